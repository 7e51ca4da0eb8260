// The gRPC handlers of ContextService: read what a client means, and pass it on to the store.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/door/key_ring.h"
#include "common/rpc/bounded_reader.h"
#include "gpu_worker/assembly/served_model.h"
#include "gpu_worker/engine/engine.h"
#include "gpu_worker/server/caller.h"
#include "gpu_worker/server/context_saver.h"
#include "gpu_worker/server/request_reader.h"
#include "gpu_worker/store_link/context_client.h"
#include "retroinfer/generation/v1/contexts.grpc.pb.h"

namespace retroinfer {

// Calls are few and long, so each has a thread of gRPC's; at most kMaxCalls are open.
//
// Threads: handlers run on gRPC's threads; the other methods on any thread.
class ContextServiceImpl final : public generation::v1::ContextService::Service {
 public:
  static constexpr int kMaxCalls = 8;

  explicit ContextServiceImpl(std::shared_ptr<const common::KeyHolder> keys)
      : keys_(std::move(keys)) {}

  // Returns the service to register with gRPC: this one behind request-size limits. `this` must
  // outlive it.
  std::unique_ptr<grpc::Service> Bounded();

  // From now on calls reach `engine` and the model's store. Called once; both outlive all calls.
  void Serve(const ServedModel* model, Engine* engine) ABSL_LOCKS_EXCLUDED(mutex_);
  // From now on calls get UNAVAILABLE; open ones end soon.
  void StartDraining() ABSL_LOCKS_EXCLUDED(mutex_);

  grpc::Status SaveContext(
      grpc::ServerContext* context, const generation::v1::SaveContextRequest* request,
      grpc::ServerWriter<generation::v1::SaveContextResponse>* writer) override;
  grpc::Status ListContexts(grpc::ServerContext* context,
                            const generation::v1::ListContextsRequest* request,
                            generation::v1::ListContextsResponse* response) override;
  grpc::Status PinContext(grpc::ServerContext* context,
                          const generation::v1::PinContextRequest* request,
                          generation::v1::PinContextResponse* response) override;
  grpc::Status UnpinContext(grpc::ServerContext* context,
                            const generation::v1::UnpinContextRequest* request,
                            generation::v1::UnpinContextResponse* response) override;
  grpc::Status RemoveContext(grpc::ServerContext* context,
                             const generation::v1::RemoveContextRequest* request,
                             generation::v1::RemoveContextResponse* response) override;
  grpc::Status VerifyContext(grpc::ServerContext* context,
                             const generation::v1::VerifyContextRequest* request,
                             generation::v1::VerifyContextResponse* response) override;
  grpc::Status ExportContext(
      grpc::ServerContext* context, const generation::v1::ExportContextRequest* request,
      grpc::ServerWriter<generation::v1::ExportContextResponse>* writer) override;
  // ImportContext.
  grpc::Status Import(grpc::ServerContext* context,
                      common::BoundedReader<generation::v1::ImportContextRequest>* reader,
                      generation::v1::ImportContextResponse* response);

 private:
  struct Backend {
    Backend(const ServedModel* served, Engine* runs)
        : model(served),
          engine(runs),
          reader(*served, runs->limits().max_model_len),
          store(served->store_target) {}

    const ServedModel* model;
    Engine* engine;
    RequestReader reader;
    ContextClient store;
  };

  // Admits a call, runs `handle(backend, caller)` and turns its status into gRPC's.
  template <typename Handle>
  grpc::Status Run(const grpc::ServerContext& context, Handle handle) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Backend*> Admit() ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsOver(const grpc::ServerContext& context) const ABSL_LOCKS_EXCLUDED(mutex_);
  // RESOURCE_EXHAUSTED, TENANT_CONTEXT_LIMIT, if the caller may save no more contexts.
  absl::Status CheckRoom(Backend& backend, const Caller& caller, const grpc::ServerContext& context,
                         const std::string& cache_salt, const std::string& name);
  absl::Status Save(Backend& backend, const Caller& caller, const grpc::ServerContext& context,
                    const generation::v1::SaveContextRequest& request,
                    grpc::ServerWriter<generation::v1::SaveContextResponse>* writer);

  const std::shared_ptr<const common::KeyHolder> keys_;

  mutable absl::Mutex mutex_;
  std::unique_ptr<Backend> backend_ ABSL_GUARDED_BY(mutex_);  // set once, then constant
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  int open_calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace retroinfer
