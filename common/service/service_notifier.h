// Tells the service manager how this process is doing.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::common {

// The sender's side of sd_notify(3), which systemd and others speak: datagrams of lines NAME=value
// to the socket that the environment names. A program that nobody manages has a silent notifier.
//
// Threads: all methods on any thread.
// Owns:    a datagram socket.
class ServiceNotifier {
 public:
  ServiceNotifier() = default;  // silent
  // `socket`: a path, or "@" and a name in the abstract namespace. `watchdog_period`: zero if the
  // manager does not watch.
  //
  // Returns: INVALID_ARGUMENT for another kind of address; errors of the system if it gives no
  //          socket. Whether anybody listens there is not asked.
  static absl::StatusOr<ServiceNotifier> Create(std::string_view socket,
                                                absl::Duration watchdog_period);
  // What NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID say. Takes them out of the environment, so
  // that no child speaks for this process: call it before other threads use the environment. What
  // is wrong with them is logged, and the notifier silent.
  static ServiceNotifier FromEnvironment();

  ServiceNotifier(ServiceNotifier&& other) noexcept;

  bool is_silent() const { return !fd_.valid(); }
  // How long the manager waits for Feed() before it takes the process for stuck; zero: for ever.
  absl::Duration watchdog_period() const { return watchdog_period_; }

  // READY=1: the service serves, after a start or a reload.
  void Ready(std::string_view status) const;
  // STATUS=, for people.
  void Status(std::string_view status) const;
  // STATUS= of a start or a stop that makes progress: the manager shall not give it up for another
  // `more`.
  void Progress(std::string_view status, absl::Duration more) const;
  // RELOADING=1; Ready() ends it.
  void Reloading() const;
  // STOPPING=1.
  void Stopping(std::string_view status) const;

  // WATCHDOG=1, at most a few times a period: cheap enough for every round of a loop. To be called
  // by the loop whose standstill makes the process useless, and by nobody else. Never blocks.
  void Feed() const;

 private:
  // Returns whether it was taken. `flags`: of send(2).
  bool Send(std::string_view lines, int flags = 0) const;

  UniqueFd fd_;
  sockaddr_un address_{};  // the manager's
  socklen_t address_bytes_ = 0;
  absl::Duration watchdog_period_ = absl::ZeroDuration();  // of the manager
  mutable std::atomic<int64_t> next_feed_ns_{0};           // on the monotonic clock
};

}  // namespace retroinfer::common
