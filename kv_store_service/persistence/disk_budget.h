// Keeps a segment storage within its limits.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kv_store_service/persistence/eviction_plan.h"
#include "kv_store_service/persistence/segment_storage.h"

namespace retroinfer::kvstore {

// Threads: all methods on any thread; one eviction at a time. Lock order: eviction_mutex_, mutex_.
class DiskBudget {
 public:
  struct Stats {
    uint64_t expired_total = 0;     // segments
    uint64_t over_quota_total = 0;  // segments
    uint64_t over_cap_total = 0;    // segments
    uint64_t evicted_bytes_total = 0;
    uint64_t expired_contexts_total = 0;
    uint64_t refused_total = 0;  // calls that found no room
  };

  // `is_referenced` tells whether a live sequence uses a segment; may be empty (none is). It must
  // not call this object.
  //
  // REQUIRES: `storage` outlives this object.
  DiskBudget(SegmentStorage* storage, DiskLimits limits,
             std::function<bool(const SegmentName&)> is_referenced);

  // Removes expired contexts, then what PlanEviction() says, so that `incoming_bytes` of `tenant`
  // fit beside what is held; with 0 bytes just keeps the limits. What is in quarantine goes first.
  //
  // Returns: RESOURCE_EXHAUSTED with the numbers if they cannot fit; errors of the storage.
  absl::Status MakeRoom(uint64_t incoming_bytes, const Hash256& tenant, absl::Time now);

  // Makes room for `bytes` more of a file that is received for a tenant and is no segment yet,
  // which has `*held` bytes already, and counts them as used: adds them to `*held`. Errors as
  // MakeRoom(), and then nothing is counted.
  absl::Status Hold(uint64_t bytes, const Hash256& tenant, absl::Time now, uint64_t* held);
  // Takes `bytes` off again.
  void Drop(uint64_t bytes, uint64_t* held);

  // Adds or replaces a context while nothing is evicted: its segments are there, and stay if it is
  // pinned. Errors as SegmentStorage::PutContext().
  absl::Status PutContext(const ContextRecord& context);

  const DiskLimits& limits() const { return limits_; }
  Stats stats();

 private:
  // Whether the limits hold with that much more, without a look at the segments.
  bool FitsEasily(uint64_t physical_bytes, uint64_t incoming_bytes) const;
  absl::Status RemoveExpiredContexts(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(eviction_mutex_);
  // As MakeRoom(), with `others` bytes in files that are received.
  absl::Status MakeRoomBeside(uint64_t others, uint64_t incoming_bytes, const Hash256& tenant,
                              absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(eviction_mutex_);

  SegmentStorage& storage_;
  const DiskLimits limits_;
  const std::function<bool(const SegmentName&)> is_referenced_;

  absl::Mutex eviction_mutex_;
  std::atomic<uint64_t> held_bytes_{0};  // in files that are received; grows under eviction_mutex_
  absl::Mutex mutex_;
  Stats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace retroinfer::kvstore
