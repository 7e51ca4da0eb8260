// Ctrl-C without signal handlers.
#pragma once

#include <signal.h>

#include <atomic>
#include <functional>
#include <initializer_list>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace retroinfer::client {

// Takes SIGINT, SIGTERM and perhaps others on a thread of its own and calls back there.
//
// Threads: SetCallback() and last_signal() on any thread.
class InterruptWatcher {
 public:
  // Blocks the signals in the calling thread and its children: make it before other threads.
  // `more`: signals besides SIGINT and SIGTERM.
  explicit InterruptWatcher(std::initializer_list<int> more = {});
  // Called on the same thread; restores its signal mask.
  ~InterruptWatcher();

  // Calls `on_interrupt(signal)` for each signal from now on; returns when an earlier callback no
  // longer runs. Without a callback a signal ends the process.
  void SetCallback(std::function<void(int)> on_interrupt) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the last SIGINT or SIGTERM that came, 0 if none has.
  int last_signal() const { return last_signal_; }
  // What a command that was ended by a signal returns to the shell: 130 after SIGINT.
  int ExitCode() const { return 128 + last_signal(); }

 private:
  void Run();

  sigset_t signals_;
  sigset_t mask_before_;
  std::atomic<int> last_signal_{0};
  absl::Mutex mutex_;  // held while the callback runs
  std::function<void(int)> callback_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace retroinfer::client
