// The whole service: memory, sockets, RPCs, metrics.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/door/door.h"
#include "common/door/door_metrics.h"
#include "common/metrics/metrics.h"
#include "common/shm/folder_lock.h"
#include "kv_store_service/contexts/contexts.h"
#include "kv_store_service/server/context_rpc.h"
#include "kv_store_service/server/descriptor_server.h"
#include "kv_store_service/server/kv_store_rpc.h"
#include "kv_store_service/server/store_metrics.h"
#include "kv_store_service/store/kv_store.h"

namespace retroinfer::kvstore {

struct StoreServerOptions {
  uint64_t arena_bytes = uint64_t{2} << 30;
  // Where kv_store.sock, the descriptor socket and the state are: see common::SocketDirOf().
  std::string socket_dir;
  std::string listen;  // "host:port" for gRPC over TCP besides the unix socket; empty: none
  std::string metrics_address;  // "host:port"; empty: no metrics
  int64_t restarts = 0;         // of this service before, by its supervisor
  absl::Duration adopt_wait = absl::Seconds(10);
  Watermarks watermarks;
  int allocation_threads = 0;  // 0: one per CPU core
  DurableTierOptions durable;  // with a folder: named segments are kept on disk too
  // Serve without the disk tier where it cannot be opened. If this is not set, Start() fails then,
  // unless the disk is full, or a worker lives that has the memory of an earlier store and would
  // lose it.
  bool durable_optional = false;
};

// Threads: one.
// Owns:    everything of the service.
class StoreServer {
 public:
  // Makes the folder of the sockets with mode 0700 if it is not there, takes its lock and opens the
  // sockets; the health service says NOT_SERVING, but for common::kLivenessService.
  //
  // Returns: INVALID_ARGUMENT for bad options; ALREADY_EXISTS if another store uses the folder;
  //          PERMISSION_DENIED if the folder cannot be made or is another user's;
  //          RESOURCE_EXHAUSTED, with the numbers, if the arena cannot fit into memory and no
  //          worker holds one.
  static absl::StatusOr<std::unique_ptr<StoreServer>> Start(const StoreServerOptions& options);
  ~StoreServer();  // stops, and waits for all calls

  // Stops: writes what is to be written and closes the disk, whatever calls still run, while they
  // are cancelled; then waits for them. A worker that is attached keeps its memory for the next
  // store.
  //
  // Returns: whether all calls have ended within `timeout`. If not, the process must end without
  //          destroying this object, which would wait for them; nothing is lost.
  bool Stop(absl::Duration timeout);

  // Gets the arena: from a live worker of an earlier store process if there is one, else new. Calls
  // `should_stop` every 20 ms meanwhile.
  //
  // Returns: RESOURCE_EXHAUSTED as above; CANCELLED if `should_stop` returned true.
  absl::Status ObtainArena(const std::function<bool()>& should_stop);

  // Whether the store can serve and its loops have gone on since the last call; does not return
  // while a call could not get through. For a watchdog.
  //
  // REQUIRES: ObtainArena() has returned OK.
  bool MadeProgress();

  // The folder that has the sockets.
  const std::string& socket_dir() const { return socket_dir_; }

  // Port of the metrics server; 0 without one.
  int metrics_port() const { return metrics_port_; }

 private:
  explicit StoreServer(const StoreServerOptions& options);
  absl::Status Initialize();
  absl::Status PrepareFolder();
  // Opens the disk tier, if there is to be one. OK without it if that is allowed: see
  // StoreServerOptions::durable_optional.
  absl::Status OpenDurableTier();
  absl::Status AllocateArena(const std::function<bool()>& should_stop);
  absl::Status StartGrpc();
  absl::Status OpenDoor();
  std::string PathOf(const char* name) const { return socket_dir_ + "/" + name; }

  const StoreServerOptions options_;
  const std::string socket_dir_;
  std::optional<common::FolderLock> lock_;
  bool adopts_ = false;
  int metrics_port_ = 0;
  std::optional<std::vector<uint64_t>> rounds_seen_;  // by MadeProgress(); by rank
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<common::Metrics> metrics_;
  std::unique_ptr<StoreMetrics> store_metrics_;
  std::unique_ptr<KvStoreRpc> rpc_;
  std::unique_ptr<Contexts> contexts_;
  std::unique_ptr<ContextRpc> context_rpc_;
  std::unique_ptr<grpc::Service> bounded_rpc_;
  std::unique_ptr<grpc::Service> bounded_context_rpc_;
  std::unique_ptr<grpc::Server> grpc_server_;
  std::thread call_ender_;  // waits for calls; see Stop()
  absl::Notification calls_ended_;
  std::unique_ptr<common::Door> door_;
  std::unique_ptr<common::DoorMetrics> door_metrics_;
  std::unique_ptr<DescriptorServer> descriptor_server_;
};

}  // namespace retroinfer::kvstore
