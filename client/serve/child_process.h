// A program that must not outlive this one.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace retroinfer::client {

// How a process ended.
struct ProcessEnd {
  int exit_code = 0;  // if signal is 0
  int signal = 0;     // that killed it; 0: it exited by itself

  std::string ToString() const;  // "exit code 1", "signal 9 (Killed)"
};

// The kernel kills the child when the thread that started it ends: start children on the main
// thread. A child has a process group of its own, so that Ctrl-C at the terminal reaches this
// process only, and no variable RETROINFER_* in its environment.
//
// Threads: one.
// Owns:    the process; the destructor kills it.
class ChildProcess {
 public:
  // Starts `arguments[0]` (a path) with `arguments`. `output` is the descriptor that takes its
  // stdout and stderr; -1: those of this process.
  //
  // Returns: NOT_FOUND, PERMISSION_DENIED and so on if it cannot be executed.
  static absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& arguments,
                                            int output = -1);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  // Returns how it ended, nothing while it runs. Never blocks.
  std::optional<ProcessEnd> Poll();
  // Waits for the end until `timeout`; nothing if it still runs.
  std::optional<ProcessEnd> Wait(absl::Duration timeout);
  void Signal(int signal);
  // SIGTERM, then SIGKILL after `grace`.
  ProcessEnd Stop(absl::Duration grace);

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}

  pid_t pid_;  // -1: moved from
  std::optional<ProcessEnd> end_;
};

}  // namespace retroinfer::client
