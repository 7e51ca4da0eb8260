// Streams of the CPU backend.
//
// A compute stream runs work at once on the thread that enqueues it, so "enqueue" there means "do",
// and Wait() blocks its caller. A background stream has a queue and a thread of its own with a
// lower priority, so that index construction runs beside the engine.
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
  // `pool` must outlive the stream; its threads share the loops of this stream's work.
  CpuStream(StreamKind kind, ThreadPool* pool);
  // Finishes the work enqueued so far.
  ~CpuStream() override;

  // Enqueues `body`, called as body(ThreadPool&). What it refers to must stay valid until the
  // stream has passed it, so an operation captures its arguments by value. A compute stream calls
  // it before Launch returns, and allocates nothing.
  template <typename Body>
  absl::Status Launch(Body body) {
    if (!thread_.joinable()) {
      body(*pool_);
    } else {
      Enqueue([pool = pool_, body = std::move(body)]() mutable { body(*pool); });
    }
    return absl::OkStatus();
  }

  absl::Status Record(Event& event) override;
  absl::Status Wait(const Event& event) override;
  absl::Status Synchronize() override;

 private:
  void Enqueue(std::function<void()> work);
  void RunQueue();

  ThreadPool* const pool_;

  absl::Mutex mutex_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;  // the thread is inside a piece of work
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // background streams only
};

}  // namespace retroinfer
