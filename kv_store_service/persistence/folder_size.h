// The size of a storage folder on the disk, without a walk over its files at each question.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace retroinfer::kvstore {

// Measures at the first question, after Forget(), after 64 additions and after 30 s; in between it
// adds what it is told.
//
// Threads: all methods on any thread; a measurement holds nobody up but who asked.
class FolderSize {
 public:
  explicit FolderSize(std::function<uint64_t()> measure,
                      std::function<absl::Time()> now = absl::Now)
      : measure_(std::move(measure)), now_(std::move(now)) {}

  uint64_t Bytes() ABSL_LOCKS_EXCLUDED(mutex_);
  void Add(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Something else has changed the folder.
  void Forget() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const std::function<uint64_t()> measure_;
  const std::function<absl::Time()> now_;
  absl::Mutex mutex_;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t num_changes_ ABSL_GUARDED_BY(mutex_) = 0;
  int additions_ ABSL_GUARDED_BY(mutex_) = 0;  // since it was measured
  absl::Time measured_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace retroinfer::kvstore
