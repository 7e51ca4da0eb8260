#include "gpu_worker/server/task_pool.h"

#include <utility>

#include "common/log/check.h"

namespace retroinfer {

TaskPool::TaskPool(int num_threads) {
  RI_CHECK(num_threads >= 1);
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Run(); });
}

TaskPool::~TaskPool() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    work_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void TaskPool::Post(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
  work_.Signal();
}

void TaskPool::Run() {
  while (true) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      while (tasks_.empty() && !stopping_) work_.Wait(&mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace retroinfer
