// Threads that run posted tasks in order: work that must block neither the engine nor gRPC.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace retroinfer {

// Threads: Post() on any thread; with one thread, tasks run one after the other in posting order.
class TaskPool {
 public:
  // REQUIRES: num_threads >= 1.
  explicit TaskPool(int num_threads);
  // Runs what has been posted, then joins the threads.
  ~TaskPool();
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  // Queues `task`. A task may post tasks, unless the destructor has begun.
  void Post(std::function<void()> task);

 private:
  void Run();

  absl::Mutex mutex_;
  absl::CondVar work_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace retroinfer
