// Threads that wait for a disk: many small reads at a time, without starting threads for each.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace retroinfer::kvstore {

// Threads: all methods on any thread.
// Owns:    its threads, which start with the first work for them, and a buffer for each.
class ReadPool {
 public:
  // Reads item `index` by way of `buffer`, which has the pool's buffer_bytes and alignment.
  using Work = std::function<absl::Status(uint32_t index, std::span<std::byte> buffer)>;

  // Buffers are aligned to 4096 bytes. REQUIRES: buffer_bytes is a multiple of that.
  ReadPool(uint32_t num_threads, size_t buffer_bytes)
      : num_threads_(num_threads), buffer_bytes_(buffer_bytes) {}
  // REQUIRES: no call of Run() is under way.
  ~ReadPool();
  ReadPool(const ReadPool&) = delete;
  ReadPool& operator=(const ReadPool&) = delete;

  size_t buffer_bytes() const { return buffer_bytes_; }

  // Calls `work` for each index below `count`, on this thread and those of the pool, until one call
  // fails, and returns when all calls have. Of several errors DATA_LOSS is the more important news:
  // it takes a segment out of use.
  //
  // Returns: RESOURCE_EXHAUSTED without memory for a buffer.
  absl::Status Run(uint32_t count, const Work& work) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Batch {
    uint32_t count = 0;
    const Work* work = nullptr;
    std::atomic<uint32_t> next{0};
    std::atomic<bool> has_failed{false};
    uint32_t num_helpers = 0;  // guarded by the pool's mutex, as the error
    absl::Status error;
  };

  void StartThreads(uint32_t wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Help() ABSL_LOCKS_EXCLUDED(mutex_);
  // Works until nothing of the batch is left to begin.
  void WorkOn(Batch& batch) ABSL_LOCKS_EXCLUDED(mutex_);
  void Note(Batch& batch, absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(const Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint32_t num_threads_;
  const size_t buffer_bytes_;

  absl::Mutex mutex_;
  absl::CondVar has_work_;
  absl::CondVar helper_ended_;
  std::deque<Batch*> batches_ ABSL_GUARDED_BY(mutex_);  // that have indexes left, the oldest first
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace retroinfer::kvstore
