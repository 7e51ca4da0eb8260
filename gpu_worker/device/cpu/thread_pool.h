// Threads that share the iterations of a loop.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace retroinfer {

// Runs loops on a fixed set of threads; the caller of a loop is one of them. Idle threads spin for
// a few dozen microseconds, so that the loops of a decode step start at once, then sleep.
//
// Threads: any thread may call; while one caller's loop runs, another caller's loop (and a loop
//          within a loop) runs on its caller alone.
class ThreadPool {
 public:
  // `num_threads` includes the caller, so `num_threads - 1` are started. `nice_increment` lowers
  // the priority of the started threads.
  //
  // REQUIRES: num_threads >= 1.
  explicit ThreadPool(int num_threads, int nice_increment = 0);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls body(i) once for each i in [0, count), in any order and on any thread; returns when all
  // calls have returned, and their writes are visible then.
  //
  // REQUIRES: 0 <= count < 2^32 - 1.
  // Cost:     no allocation; about a microsecond when the threads are awake.
  void ParallelFor(int64_t count, absl::FunctionRef<void(int64_t)> body);

 private:
  using Body = absl::FunctionRef<void(int64_t)>;

  void Work();
  // Runs iterations of the current loop until none is left.
  void RunIterations();
  void WaitUntilDone(uint32_t count);

  std::vector<std::thread> threads_;

  absl::Mutex caller_mutex_;  // held by the thread whose loop uses the threads

  // The current loop. cursor_ holds the loop's number (upper half) and the next iteration (lower
  // half): an iteration is claimed by a compare-and-swap, which fails if the loop has changed since
  // count_ and body_ were read.
  std::atomic<uint64_t> cursor_;
  std::atomic<uint32_t> count_ = 0;
  std::atomic<const Body*> body_ = nullptr;
  std::atomic<uint32_t> num_done_ = 0;

  std::atomic<uint32_t> num_wakes_ = 0;  // what sleeping threads wait on
  std::atomic<bool> stopping_ = false;
};

}  // namespace retroinfer
