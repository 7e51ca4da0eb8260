// Tells clients what their requests have generated, on a thread of its own: tokens become text
// there and go to their sinks, in the order in which they were posted.
//
// Threads: Post() and Drain() on any thread.
// Owns:    the thread.
#pragma once

#include <cstddef>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gpu_worker/engine/client_event.h"

namespace retroinfer {

class OutputThread {
 public:
  // Events that wait at most, beside those of one call of Post().
  static constexpr size_t kMaxEvents = 1 << 16;

  explicit OutputThread(size_t max_events = kMaxEvents);
  // Tells what was posted.
  ~OutputThread();

  // Hands the events over, and leaves `events` empty. Waits while max_events are waiting: clients
  // that are not told hold the engine up rather than its memory.
  void Post(std::vector<ClientEvent>& events);
  // Waits until all that was posted is told.
  void Drain();

 private:
  void Loop();
  static void Tell(ClientEvent& event);

  const size_t max_events_;
  absl::Mutex mutex_;
  std::vector<ClientEvent> waiting_ ABSL_GUARDED_BY(mutex_);
  bool is_telling_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace retroinfer
