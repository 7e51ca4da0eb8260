// Invariants:
// * count_ and body_ change only while the lower half of cursor_ is kNoIteration, and each loop has
//   a new upper half; so a claim of an iteration proves that both were read from its loop.
// * num_done_ reaches count_ only after every claimed iteration has returned; the caller waits for
//   that, so no thread touches a body whose loop has ended.
#include "gpu_worker/device/cpu/thread_pool.h"

#include <chrono>

#include "common/log/check.h"
#include "gpu_worker/device/cpu/thread_priority.h"

namespace retroinfer {
namespace {

constexpr uint64_t kNoIteration = 0xffffffff;
constexpr std::chrono::microseconds kSpinTime(30);

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Calls `ready` until it returns true or kSpinTime has passed; returns whether it returned true.
template <typename Predicate>
bool SpinUntil(Predicate ready) {
  const auto end = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

}  // namespace

ThreadPool::ThreadPool(int num_threads, int nice_increment) : cursor_(kNoIteration) {
  RI_CHECK(num_threads >= 1);
  for (int i = 1; i < num_threads; ++i) {
    threads_.emplace_back([this, nice_increment] {
      if (nice_increment != 0) LowerThreadPriority(nice_increment);
      Work();
    });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  num_wakes_.fetch_add(1);
  num_wakes_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::ParallelFor(int64_t count, absl::FunctionRef<void(int64_t)> body) {
  RI_CHECK(count >= 0 && static_cast<uint64_t>(count) < kNoIteration);
  if (count <= 1 || threads_.empty() || !caller_mutex_.TryLock()) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  const uint64_t loop = (cursor_.load(std::memory_order_relaxed) >> 32) + 1;
  cursor_.store(loop << 32 | kNoIteration);
  count_.store(static_cast<uint32_t>(count), std::memory_order_relaxed);
  body_.store(&body, std::memory_order_relaxed);
  num_done_.store(0, std::memory_order_relaxed);
  cursor_.store(loop << 32);
  num_wakes_.fetch_add(1);
  num_wakes_.notify_all();
  RunIterations();
  WaitUntilDone(static_cast<uint32_t>(count));
  caller_mutex_.Unlock();
}

void ThreadPool::RunIterations() {
  uint64_t cursor = cursor_.load();
  while (true) {
    const uint32_t count = count_.load();
    const Body* body = body_.load();
    const uint64_t iteration = cursor & kNoIteration;
    if (iteration >= count || iteration == kNoIteration) return;
    if (!cursor_.compare_exchange_weak(cursor, cursor + 1)) continue;
    (*body)(static_cast<int64_t>(iteration));
    if (num_done_.fetch_add(1) + 1 == count) num_done_.notify_all();
    cursor = cursor_.load();
  }
}

void ThreadPool::WaitUntilDone(uint32_t count) {
  if (SpinUntil([&] { return num_done_.load() == count; })) return;
  for (uint32_t done = num_done_.load(); done != count; done = num_done_.load()) {
    num_done_.wait(done);
  }
}

void ThreadPool::Work() {
  uint32_t seen = num_wakes_.load();
  while (true) {
    RunIterations();
    if (stopping_.load()) return;
    if (!SpinUntil([&] { return num_wakes_.load() != seen; })) num_wakes_.wait(seen);
    seen = num_wakes_.load();
  }
}

}  // namespace retroinfer
