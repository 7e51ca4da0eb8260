// The gRPC handlers of GenerationService.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/clock/steady_now.h"
#include "common/door/key_ring.h"
#include "gpu_worker/assembly/served_model.h"
#include "gpu_worker/engine/engine.h"
#include "gpu_worker/server/generate_call.h"
#include "gpu_worker/server/request_reader.h"
#include "retroinfer/generation/v1/generation.grpc.pb.h"

namespace retroinfer {

namespace internal {
using GenerationRawMethods = generation::v1::GenerationService::WithRawCallbackMethod_Generate<
    generation::v1::GenerationService::WithRawCallbackMethod_Score<
        generation::v1::GenerationService::WithRawCallbackMethod_Tokenize<
            generation::v1::GenerationService::WithRawCallbackMethod_Detokenize<
                generation::v1::GenerationService::WithRawCallbackMethod_GetModelInfo<
                    generation::v1::GenerationService::WithRawCallbackMethod_Abort<
                        generation::v1::GenerationService::Service>>>>>>;
}  // namespace internal

// gRPC's threads only start and end calls here; parsing and tokenizing run on the admission pool,
// writing to clients on the sender.
//
// Threads: handlers run on gRPC's threads; the other methods on any thread.
class GenerationServiceImpl final : public internal::GenerationRawMethods {
 public:
  struct Settings {  // pointers outlive the service and all its calls
    TaskPool* admission;
    TaskPool* sender;  // one thread
    RequestObserver* observer;
    size_t max_pending_bytes;
    size_t max_pending_bytes_total;
    std::shared_ptr<const common::KeyHolder> keys;
    std::string version;
    std::string revision;
  };
  explicit GenerationServiceImpl(const Settings& settings);

  // From now on calls reach `engine`; before, they get UNAVAILABLE. Called once; both outlive all
  // calls.
  void Serve(const ServedModel* model, Engine* engine) ABSL_LOCKS_EXCLUDED(mutex_);
  // From now on new calls of Generate and Score get UNAVAILABLE.
  void StartDraining() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until no call of either is open, at most `timeout`.
  void AwaitNoCalls(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Score(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;

 private:
  // What calls run on, once there is a model.
  struct Backend {
    const ServedModel* model;
    Engine* engine;
    RequestReader reader;
  };

  // Reads a request whose bytes are those; its id comes first, for the log.
  using ReadSubmission = std::function<absl::StatusOr<GenerateCall::Submission>(
      const Backend& backend, const Caller& caller, const grpc::ByteBuffer& bytes,
      absl::Time deadline, std::string* request_id)>;
  // Makes the bytes of an event.
  using EncodeEvent = std::function<grpc::ByteBuffer(const generation::v1::GenerateResponse&)>;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* StartCall(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        EncodeEvent encode, ReadSubmission read);
  void OnGenerateDone() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<const Backend*> FindBackend() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<const Backend*> AdmitGenerate() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs `handle(backend, caller, request)` on the admission pool and answers with what it returns.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* RunUnary(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
      grpc::ByteBuffer* response,
      std::function<absl::StatusOr<Response>(const Backend&, const Caller&, const Request&)>
          handle);
  absl::StatusOr<generation::v1::GetModelInfoResponse> DescribeModel(const Backend& backend) const;
  bool AbortAll(Engine& engine, const std::string& request_id) const;

  const Settings settings_;
  const absl::Time started_ = common::SteadyNow();
  const std::shared_ptr<PendingBudget> pending_;
  std::atomic<bool> draining_{false};

  mutable absl::Mutex mutex_;
  std::unique_ptr<Backend> backend_ ABSL_GUARDED_BY(mutex_);  // set once, then constant
  int open_calls_ ABSL_GUARDED_BY(mutex_) = 0;                // of Generate and Score
};

}  // namespace retroinfer
