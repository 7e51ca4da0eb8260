// The KvStoreService RPCs: translate messages and statuses, nothing else.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "kv_store_service/store/kv_store.h"
#include "retroinfer/kvstore/v1/kv_store.grpc.pb.h"

namespace retroinfer::kvstore {

// Threads: gRPC's.
class KvStoreRpc final : public v1::KvStoreService::Service {
 public:
  // Returns the service to register with gRPC: this one behind request-size limits. `this` must
  // outlive it.
  std::unique_ptr<grpc::Service> Bounded();

  // REQUIRES: `store` outlives the service.
  KvStoreRpc(KvStore* store, std::string descriptor_socket_path);

  grpc::Status AttachWorker(grpc::ServerContext* context, const v1::AttachWorkerRequest* request,
                            v1::AttachWorkerResponse* response) override;
  grpc::Status DetachWorker(grpc::ServerContext* context, const v1::DetachWorkerRequest* request,
                            v1::DetachWorkerResponse* response) override;
  grpc::Status ReserveExtents(grpc::ServerContext* context,
                              const v1::ReserveExtentsRequest* request,
                              v1::ReserveExtentsResponse* response) override;
  grpc::Status FetchParts(grpc::ServerContext* context, const v1::FetchPartsRequest* request,
                          v1::FetchPartsResponse* response) override;
  grpc::Status CommitSegments(grpc::ServerContext* context,
                              const v1::CommitSegmentsRequest* request,
                              v1::CommitSegmentsResponse* response) override;
  grpc::Status ReleaseSequence(grpc::ServerContext* context,
                               const v1::ReleaseSequenceRequest* request,
                               v1::ReleaseSequenceResponse* response) override;
  grpc::Status DeclareSegments(grpc::ServerContext* context,
                               const v1::DeclareSegmentsRequest* request,
                               v1::DeclareSegmentsResponse* response) override;
  grpc::Status ListSegments(grpc::ServerContext* context, const v1::ListSegmentsRequest* request,
                            v1::ListSegmentsResponse* response) override;
  grpc::Status FindClusters(grpc::ServerContext* context, const v1::FindClustersRequest* request,
                            v1::FindClustersResponse* response) override;
  grpc::Status ListDurableSegments(grpc::ServerContext* context,
                                   const v1::ListDurableSegmentsRequest* request,
                                   v1::ListDurableSegmentsResponse* response) override;
  grpc::Status GetStats(grpc::ServerContext* context, const v1::GetStatsRequest* request,
                        v1::GetStatsResponse* response) override;

 private:
  KvStore* const store_;
  const std::string descriptor_socket_path_;
  const absl::Time started_;
};

}  // namespace retroinfer::kvstore
