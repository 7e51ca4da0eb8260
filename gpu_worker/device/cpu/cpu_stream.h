// Streams of the CPU backend.
//
// A compute stream runs work at once on the thread that enqueues it, so "enqueue" there means "do",
// and Wait() blocks its caller. A background stream has a queue and a thread of its own with a
// lower priority, so that index construction runs beside the engine. On a machine that others keep
// busy such a thread gets next to nothing, and nobody without privileges may raise its priority
// again: so there is a second thread of normal priority, which takes the work while it is urgent.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "gpu_worker/device/cpu/thread_pool.h"
#include "gpu_worker/device/device.h"

namespace retroinfer {

class CpuStream final : public Stream {
 public:
  // REQUIRES: `stream` is of a CpuDevice.
  static CpuStream& Of(Stream& stream) { return static_cast<CpuStream&>(stream); }

  // `pool` and `urgent_pool` must outlive the stream; their threads share the loops of this
  // stream's work, those of `urgent_pool` (of background streams only) while it is urgent.
  CpuStream(StreamKind kind, ThreadPool* pool, ThreadPool* urgent_pool = nullptr);
  // Finishes the work enqueued so far.
  ~CpuStream() override;

  // Enqueues `body`, called as body(ThreadPool&). What it refers to must stay valid until the
  // stream has passed it, so an operation captures its arguments by value. A compute stream calls
  // it before Launch returns, and allocates nothing.
  template <typename Body>
  absl::Status Launch(Body body) {
    if (!is_background()) {
      body(*pool_);
    } else {
      Enqueue(std::move(body));
    }
    return absl::OkStatus();
  }

  absl::Status Record(Event& event) override;
  absl::Status Wait(const Event& event) override;
  absl::Status Synchronize() override;
  void SetUrgent(bool urgent) override;

 private:
  using Work = std::function<void(ThreadPool&)>;

  bool is_background() const { return thread_.joinable(); }
  void Enqueue(Work work);
  // Runs what is enqueued while the stream's urgency is `urgent`, one piece at a time.
  void RunQueue(bool urgent, ThreadPool& pool);

  ThreadPool* const pool_;

  absl::Mutex mutex_;
  std::deque<Work> queue_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;  // a thread is inside a piece of work
  bool urgent_ ABSL_GUARDED_BY(mutex_) = false;
  int num_synchronizing_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that wait: urgent, too
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;         // background streams only
  std::thread urgent_thread_;  // the same
};

}  // namespace retroinfer
