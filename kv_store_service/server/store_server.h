// The whole service: memory, sockets, RPCs, metrics.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "common/shm/unique_fd.h"
#include "kv_store_service/server/context_rpc.h"
#include "kv_store_service/server/contexts.h"
#include "kv_store_service/server/descriptor_server.h"
#include "kv_store_service/server/kv_store.h"
#include "kv_store_service/server/kv_store_rpc.h"
#include "kv_store_service/server/store_metrics.h"

namespace retroinfer::kvstore {

struct StoreServerOptions {
  uint64_t arena_bytes = uint64_t{2} << 30;
  std::string socket_dir;  // mode 0700; holds kv_store.sock, the descriptor socket, the state
  std::string listen;      // "host:port" for gRPC over TCP besides the unix socket; empty: none
  std::string metrics_address;  // "host:port"; empty: no metrics
  absl::Duration adopt_wait = absl::Seconds(10);
  Watermarks watermarks;
  int allocation_threads = 0;  // 0: one per CPU core
  DurableTierOptions durable;  // with a folder: named segments are kept on disk too
};

// Threads: one.
// Owns:    everything of the service.
class StoreServer {
 public:
  // Takes the folder's lock and opens the sockets; the health service says NOT_SERVING, but for
  // common::kLivenessService.
  //
  // Returns: INVALID_ARGUMENT for bad options; ALREADY_EXISTS if another store uses the folder;
  //          PERMISSION_DENIED if others may enter the folder; RESOURCE_EXHAUSTED, with the
  //          numbers, if the arena cannot fit into memory and no worker holds one.
  static absl::StatusOr<std::unique_ptr<StoreServer>> Start(const StoreServerOptions& options);
  ~StoreServer();  // stops at once; a worker that is attached keeps its memory for the next store

  // Gets the arena: from a live worker of an earlier store process if there is one, else new. Calls
  // `should_stop` at least every 50 ms while waiting; it may sleep up to that long.
  //
  // Returns: RESOURCE_EXHAUSTED as above; CANCELLED if `should_stop` returned true.
  absl::Status ObtainArena(const std::function<bool()>& should_stop);

  // Port of the metrics server; 0 without one.
  int metrics_port() const { return metrics_port_; }

 private:
  explicit StoreServer(const StoreServerOptions& options);
  absl::Status Initialize();
  absl::Status PrepareFolder();
  // Opens the disk tier, if there is to be one. Without it the service goes on.
  void OpenDurableTier();
  absl::Status StartGrpc();
  std::string PathOf(const char* name) const { return options_.socket_dir + "/" + name; }

  const StoreServerOptions options_;
  common::UniqueFd lock_;
  bool adopts_ = false;
  int metrics_port_ = 0;
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<common::Metrics> metrics_;
  std::unique_ptr<StoreMetrics> store_metrics_;
  std::unique_ptr<KvStoreRpc> rpc_;
  std::unique_ptr<Contexts> contexts_;
  std::unique_ptr<ContextRpc> context_rpc_;
  std::unique_ptr<grpc::Server> grpc_server_;
  std::unique_ptr<DescriptorServer> descriptor_server_;
};

}  // namespace retroinfer::kvstore
