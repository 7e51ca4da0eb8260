// The ContextStoreService RPCs: translate messages and statuses, nothing else.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>

#include "absl/status/statusor.h"
#include "common/rpc/bounded_reader.h"
#include "kv_store_service/contexts/contexts.h"
#include "retroinfer/kvstore/v1/contexts.grpc.pb.h"

namespace retroinfer::kvstore {

// Threads: gRPC's.
class ContextRpc final : public v1::ContextStoreService::Service {
 public:
  // REQUIRES: `contexts` outlives the service.
  explicit ContextRpc(Contexts* contexts) : contexts_(*contexts) {}
  // Returns the service to register with gRPC: this one behind request-size limits. `this` must
  // outlive it.
  std::unique_ptr<grpc::Service> Bounded();

  grpc::Status SaveContext(grpc::ServerContext* context, const v1::SaveContextRequest* request,
                           v1::SaveContextResponse* response) override;
  grpc::Status ListContexts(grpc::ServerContext* context, const v1::ListContextsRequest* request,
                            v1::ListContextsResponse* response) override;
  grpc::Status PinContext(grpc::ServerContext* context, const v1::PinContextRequest* request,
                          v1::PinContextResponse* response) override;
  grpc::Status UnpinContext(grpc::ServerContext* context, const v1::UnpinContextRequest* request,
                            v1::UnpinContextResponse* response) override;
  grpc::Status RemoveContext(grpc::ServerContext* context, const v1::RemoveContextRequest* request,
                             v1::RemoveContextResponse* response) override;
  grpc::Status VerifyContext(grpc::ServerContext* context, const v1::VerifyContextRequest* request,
                             v1::VerifyContextResponse* response) override;
  grpc::Status ExportContext(grpc::ServerContext* context, const v1::ExportContextRequest* request,
                             grpc::ServerWriter<v1::ExportContextResponse>* writer) override;
  // ImportContext.
  grpc::Status Import(grpc::ServerContext* context,
                      common::BoundedReader<v1::ImportContextRequest>* reader,
                      v1::ImportContextResponse* response);

 private:
  // Counts a call that moves or checks whole contexts, as long as the result lives.
  //
  // Returns: RESOURCE_EXHAUSTED (reason TOO_MANY_TRANSFERS) if there are enough of them.
  absl::StatusOr<std::shared_ptr<void>> BeginTransfer();

  Contexts& contexts_;
  std::atomic<int> num_transfers_{0};
};

}  // namespace retroinfer::kvstore
