// Ctrl-C without signal handlers.
#pragma once

#include <signal.h>

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace retroinfer::client {

// Takes SIGINT and SIGTERM on a thread of its own and calls back there.
//
// Threads: SetCallback() on any thread.
class InterruptWatcher {
 public:
  // Blocks the signals in the calling thread and its children: make it before other threads.
  InterruptWatcher();
  // Called on the same thread; restores its signal mask.
  ~InterruptWatcher();

  // Calls `on_interrupt(signal)` for each signal from now on; returns when an earlier callback no
  // longer runs. Without a callback a signal ends the process.
  void SetCallback(std::function<void(int)> on_interrupt) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run();

  sigset_t mask_before_;
  absl::Mutex mutex_;  // held while the callback runs
  std::function<void(int)> callback_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace retroinfer::client
