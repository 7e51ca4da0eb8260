// The worker's public face: GenerationService, health and reflection over gRPC.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/door/door.h"
#include "common/door/door_metrics.h"
#include "common/metrics/metrics.h"
#include "gpu_worker/server/context_service.h"
#include "gpu_worker/server/engine_monitor.h"
#include "gpu_worker/server/generation_service.h"
#include "gpu_worker/server/request_recorder.h"
#include "gpu_worker/server/server_options.h"

namespace retroinfer {

// Health is NOT_SERVING, for "" and for the service's name, until Serve() has been given an engine
// and that says that it is ready; again while it is not, and from the beginning of Drain(). For
// common::kLivenessService it is SERVING until the sockets are closed.
// Reflection is on; like every RPC but health it needs the API key, if there is one.
//
// Threads: one, for all methods but CutDrain(); calls are handled on threads of its own and of
//          gRPC.
// Owns:    sockets, calls and their threads; not the engine.
class WorkerServer {
 public:
  // Opens the sockets.
  //
  // Returns: INVALID_ARGUMENT for bad TLS settings or no address; UNAVAILABLE if an address is
  //          taken or not valid.
  // REQUIRES: `metrics` outlives the server.
  static absl::StatusOr<std::unique_ptr<WorkerServer>> Start(const ServerOptions& options,
                                                             common::Metrics& metrics);
  // Cancels what is live. Drain() first, to let it finish.
  ~WorkerServer();

  // Begins to serve. Called once.
  //
  // REQUIRES: both outlive the server, or its Drain().
  void Serve(const ServedModel* model, Engine* engine);

  // Refuses new requests, lets live ones finish for up to `grace`, cancels the rest, and closes the
  // sockets. Called once, at the end.
  void Drain(absl::Duration grace);
  // Cancels what a Drain() on another thread still waits for.
  void CutDrain();

  // As given, with the port that was taken where port 0 was asked for.
  const std::vector<std::string>& addresses() const { return door_->addresses(); }

  // Reads the certificates again now; they are read when they have changed, too.
  void ReloadCertificates() { door_->ReloadCertificates(); }

 private:
  WorkerServer(const ServerOptions& options, common::Metrics& metrics);
  absl::Status Listen();
  absl::Status OpenDoor();
  void SetServing(bool serving);

  const ServerOptions options_;
  common::Metrics& metrics_;
  RequestRecorder recorder_;
  TaskPool sender_{1};
  TaskPool admission_;
  GenerationServiceImpl service_;
  ContextServiceImpl contexts_;
  const std::unique_ptr<grpc::Service> bounded_contexts_ = contexts_.Bounded();
  Engine* engine_ = nullptr;
  std::unique_ptr<grpc::Server> grpc_server_;
  std::unique_ptr<common::Door> door_;
  std::unique_ptr<common::DoorMetrics> door_metrics_;
  std::unique_ptr<EngineMonitor> monitor_;
};

}  // namespace retroinfer
