// Gives the shared memory to the attached worker, and watches that worker's life.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/log/log_rate_limiter.h"
#include "common/shm/fd_channel.h"
#include "common/shm/unique_fd.h"
#include "kv_store_service/store/kv_store.h"

namespace retroinfer::kvstore {

// Serves the descriptor socket (common/shm/descriptor_protocol.h) on one thread. Whoever runs under
// another user id, presents no valid token, talks garbage or does not talk at all is refused.
//
// Threads: Start() and Stop() on one thread.
// Owns:    the socket, its connections and its thread.
class DescriptorServer {
 public:
  struct Options {
    absl::Duration greeting_timeout = absl::Seconds(2);  // for the first message of a connection
    size_t pending_max = 16;                             // connections without a greeting
  };

  // REQUIRES: `store` outlives the server; no other process listens at `path`.
  static absl::StatusOr<std::unique_ptr<DescriptorServer>> Start(const std::string& path,
                                                                 KvStore* store,
                                                                 const Options& options);
  ~DescriptorServer();  // closes all connections, the lease too
  DescriptorServer(const DescriptorServer&) = delete;
  DescriptorServer& operator=(const DescriptorServer&) = delete;

 private:
  struct Pending {
    common::FdChannel channel;
    absl::Time deadline;
  };
  struct Lease {
    common::FdChannel channel;
    std::string token;
  };

  DescriptorServer(common::FdListener listener, common::UniqueFd wake, KvStore* store,
                   const Options& options);
  void Loop();
  // Returns false if the system lacks what a connection takes; some wait then.
  bool AcceptAll();
  void DropLate(absl::Time now);
  // Reads the greeting; true if the connection is done with (refused, or now the lease).
  bool Greet(Pending* pending);
  absl::Status Admit(Pending* pending);
  void ReadLease();

  common::FdListener listener_;
  common::UniqueFd wake_;  // eventfd: stop
  KvStore* const store_;
  const Options options_;
  std::list<Pending> pending_;
  std::optional<Lease> lease_;
  common::LogRateLimiter refusal_log_{absl::Seconds(1)};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace retroinfer::kvstore
