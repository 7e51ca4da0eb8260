// Events of the CPU backend.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gpu_worker/device/device.h"

namespace retroinfer {

// Counts how often an event was recorded and how many of these points have been reached.
//
// Threads: any.
class EventState {
 public:
  // Returns the number of this record.
  uint64_t MarkRecorded() {
    absl::MutexLock lock(&mutex_);
    return ++recorded_;
  }
  void MarkReached(uint64_t record) {
    absl::MutexLock lock(&mutex_);
    if (record > reached_) reached_ = record;
  }
  uint64_t recorded() const {
    absl::MutexLock lock(&mutex_);
    return recorded_;
  }
  bool IsReached() const {
    absl::MutexLock lock(&mutex_);
    return reached_ == recorded_;
  }
  // Blocks until `record` has been reached.
  void WaitFor(uint64_t record) const {
    auto reached = [this, record]()
                       ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return reached_ >= record; };
    mutex_.LockWhen(absl::Condition(&reached));
    mutex_.Unlock();
  }

 private:
  mutable absl::Mutex mutex_;
  uint64_t recorded_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t reached_ ABSL_GUARDED_BY(mutex_) = 0;
};

// May be destroyed while a stream still has work that refers to it.
class CpuEvent final : public Event {
 public:
  const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  const std::shared_ptr<EventState> state_ = std::make_shared<EventState>();
};

}  // namespace retroinfer
