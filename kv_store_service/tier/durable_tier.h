// The disk under the arena: writes named segments in the background and reads them back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/kv/named_segment.h"
#include "kv_store_service/persistence/disk_budget.h"
#include "kv_store_service/persistence/persister.h"
#include "kv_store_service/persistence/rocksdb_segment_storage.h"
#include "kv_store_service/persistence/segment_storage.h"

namespace retroinfer::kvstore {

struct DurableTierOptions {
  std::string folder;                              // of the storage; empty: no durable tier
  PersistMode mode = PersistMode::kWriteThrough;   // which committed segments are written
  DiskLimits limits;                               // of what is written
  uint32_t restore_threads = 2;                    // that read one segment
  uint64_t reserve_bytes = 256u << 20;             // of the disk, that stay free
  absl::Duration retry_after = absl::Seconds(30);  // when a segment could not be read
  // How long the end of the tier may take to write what is queued; the rest is not written.
  absl::Duration stop_timeout = absl::Seconds(5);
  std::function<absl::StatusOr<std::unique_ptr<SegmentStorage>>(RocksDbStorageOptions)>
      open_storage = OpenRocksDbSegmentStorage;
};

// One segment to read back into the arena.
struct SegmentToRead {
  SegmentName name;
  std::span<std::byte> image;  // of the record's size
};

// Consecutive segments of one prefix.
struct RestoreJob {
  std::vector<SegmentToRead> segments;
  // Called in order for each segment that was read and checked against its checksums, with the
  // token ids that the disk has for it. An error ends the job; INVALID_ARGUMENT, for an image that
  // is no segment or token ids that do not give the name, puts it into quarantine.
  absl::AnyInvocable<absl::Status(size_t, std::vector<int32_t>)> on_read;
  absl::AnyInvocable<void()> done;  // called once, last; the images are not needed any more
};

// Threads: all methods on any thread. Callbacks run on threads of this object, except that Offer()
//          may call its request's `done` at once; callers must not hold what callbacks lock.
// Owns:    the storage, the persister and a thread that reads; not the images.
class DurableTier {
 public:
  struct Stats {
    StorageStats storage;
    Persister::Stats persister;
    DiskBudget::Stats budget;
    uint64_t pinned_contexts = 0;
    uint64_t pinned_bytes = 0;    // of their segments
    uint64_t restored_total = 0;  // segments
    uint64_t restored_bytes_total = 0;
    // Segments that were there and could not be read; not those that were deleted before they were.
    uint64_t restore_failures_total = 0;
    double restore_seconds_total = 0;
    uint64_t limit_bytes = 0;  // DiskLimits::cap_bytes
    // Of the file system of the folder, and what this process may still write there; 0: not known.
    uint64_t disk_bytes = 0, disk_free_bytes = 0;
  };

  // Opens the storage in `options.folder`. Errors as OpenRocksDbSegmentStorage(). `is_referenced`
  // as for DiskBudget.
  static absl::StatusOr<std::unique_ptr<DurableTier>> Open(
      const DurableTierOptions& options, std::function<bool(const SegmentName&)> is_referenced);

  DurableTier(const DurableTierOptions& options, std::unique_ptr<SegmentStorage> storage,
              std::function<bool(const SegmentName&)> is_referenced);
  ~DurableTier();  // closes

  // Writes what is queued if the disk works, for options.stop_timeout, logs what was not written,
  // and closes the storage: from then on nothing is written or restored.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  // Queues a committed segment to be written, as Persister::Offer().
  void Offer(PersistRequest request) { persister_.Offer(std::move(request)); }

  // The same for a segment that a user wants to keep, as Persister::Persist().
  void Persist(PersistRequest request) { persister_.Persist(std::move(request)); }
  // Has `work` done about twice a minute while nothing is read (more often where times to live are
  // short), from a thread of this object, until Close() returns.
  void WhenIdle(std::function<void()> work) ABSL_LOCKS_EXCLUDED(mutex_);
  bool is_closing() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool writes_through() const { return options_.mode == PersistMode::kWriteThrough; }

  // For contexts, which the storage keeps; evictions go through the budget.
  SegmentStorage& storage() { return *storage_; }
  DiskBudget& budget() { return budget_; }
  const std::string& folder() const { return options_.folder; }
  uint64_t reserve_bytes() const { return options_.reserve_bytes; }

  // Returns the record of a segment that can be read back; nothing if there is none, or reading it
  // failed a moment ago. Memory only.
  std::optional<SegmentRecord> Peek(const SegmentName& name) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the records of those children, as SegmentStorage::Children(), that can be read back.
  std::vector<SegmentRecord> Children(const SegmentName& parent) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the records of all segments on the disk, ordered by name. Memory only.
  std::vector<SegmentRecord> List();
  // Notes the use of the segments of a prefix.
  void Touch(std::span<const SegmentName> names);
  // Queues a job.
  void Restore(RestoreJob job) ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until no queued segment or job needs an image any more. False after `timeout`.
  bool Drain(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);

  Stats stats() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Whether reading it failed a moment ago.
  bool HasFailed(const SegmentName& name) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run();
  void RunJob(RestoreJob& job) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status ReadOne(const SegmentToRead& segment, std::vector<int32_t>* token_ids);
  // Hands over what was read; quarantines it if `on_read` refuses it.
  absl::Status HandOver(RestoreJob& job, size_t index, std::vector<int32_t> token_ids);
  bool WorkOrStop() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !jobs_.empty();
  }
  bool NoJobs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_jobs_ == 0; }

  const DurableTierOptions options_;
  const std::unique_ptr<SegmentStorage> storage_;
  DiskBudget budget_;
  Persister persister_;

  mutable absl::Mutex mutex_;
  std::deque<RestoreJob> jobs_ ABSL_GUARDED_BY(mutex_);
  size_t num_jobs_ ABSL_GUARDED_BY(mutex_) = 0;  // queued and running
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> when_idle_ ABSL_GUARDED_BY(mutex_);
  std::map<SegmentName, absl::Time> failed_ ABSL_GUARDED_BY(mutex_);  // not to be tried until then
  uint64_t restored_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t restored_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t failures_ ABSL_GUARDED_BY(mutex_) = 0;
  double restore_seconds_ ABSL_GUARDED_BY(mutex_) = 0;

  std::thread thread_;
};

}  // namespace retroinfer::kvstore
