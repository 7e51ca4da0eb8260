// Makes committed segments durable in the background.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock/steady_now.h"
#include "kv_store_service/persistence/disk_budget.h"
#include "kv_store_service/persistence/segment_storage.h"

namespace retroinfer::kvstore {

enum class PersistMode {
  kOff,           // nothing is written
  kOnDemand,      // only what Persist() asks for
  kWriteThrough,  // every committed segment
};

struct PersisterOptions {
  PersistMode mode = PersistMode::kWriteThrough;
  size_t max_queued = 1024;                                // segments
  absl::Duration first_backoff = absl::Seconds(1);         // after a failed write; doubles ...
  absl::Duration max_backoff = absl::Minutes(1);           // ... up to this
  absl::Duration stop_timeout = absl::InfiniteDuration();  // see ~Persister()
  std::function<absl::Time()> now = common::SteadyNow;     // of pauses after failures
};

// One segment to write.
struct PersistRequest {
  SegmentRecord record;
  std::vector<int32_t> token_ids;
  std::span<const std::byte> image;  // in the arena; must stay as it is until `done` is called
  // Called once, on the persister's thread (or the caller's, if the request is refused): the image
  // is not needed any more. OK: the segment is durable.
  absl::AnyInvocable<void(absl::Status)> done;
};

// A queue and the thread that empties it, oldest first. Never makes its callers wait for the disk.
//
// After a failed write (no space, I/O error) it is *degraded*: until the back-off is over requests
// are refused at once, queued ones too. A segment that does not fit into the limits is refused
// without that.
//
// Threads: all methods on any thread. `done` may call Offer() and Persist().
// Owns:    its thread; the bytes of an image belong to the caller.
class Persister {
 public:
  struct Stats {
    uint64_t queued = 0;           // gauge: segments, the one being written included
    uint64_t queued_bytes = 0;     // gauge
    bool degraded = false;         // gauge
    uint64_t persisted_total = 0;  // segments
    uint64_t persisted_bytes_total = 0;
    uint64_t failed_total = 0;       // writes that failed
    uint64_t no_room_total = 0;      // refused by the limits of the disk
    uint64_t dropped_total = 0;      // refused: queue full, degraded or stopped
    double write_seconds_total = 0;  // of successful writes
  };

  // REQUIRES: `storage` and `budget` outlive this object; `budget` may be null (no limits).
  Persister(PersisterOptions options, SegmentStorage* storage, DiskBudget* budget);

  ~Persister();  // stops

  // Writes what is queued if the disk works, and ends. What cannot be written, or is not written
  // after stop_timeout, is refused and logged; a write that has begun is waited for. Refuses from
  // then on.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // Queues a segment that was just committed. In any mode but write-through, does nothing more than
  // calling `done` with FAILED_PRECONDITION. RESOURCE_EXHAUSTED: the queue is full. UNAVAILABLE:
  // degraded or stopping.
  void Offer(PersistRequest request);

  // The same for a segment that a user wants to keep; works in write-through and on-demand mode.
  void Persist(PersistRequest request);

  // Waits until everything queued before is written or refused. False after `timeout`.
  bool Drain(absl::Duration timeout);

  Stats stats();

 private:
  void Enqueue(PersistRequest request, bool allowed);
  void Run();
  absl::Status Write(const PersistRequest& request);
  void RecordResult(const absl::Status& status, uint64_t bytes, absl::Duration took)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WorkOrStop() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !queue_.empty();
  }
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stats_.queued == 0; }

  const PersisterOptions options_;
  SegmentStorage& storage_;
  DiskBudget* const budget_;

  absl::Mutex mutex_;
  std::deque<PersistRequest> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time stop_deadline_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  uint64_t unwritten_ ABSL_GUARDED_BY(mutex_) = 0;        // segments refused while stopping
  uint64_t unwritten_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of those
  absl::Duration backoff_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  absl::Time retry_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  Stats stats_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace retroinfer::kvstore
