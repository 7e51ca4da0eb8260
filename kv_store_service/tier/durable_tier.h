// The disk under the arena: writes named segments in the background and reads them back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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
#include "kv_store_service/tier/partial_image.h"

namespace retroinfer::kvstore {

struct DurableTierOptions {
  std::string folder;                              // of the storage; empty: no durable tier
  PersistMode mode = PersistMode::kWriteThrough;   // which committed segments are written
  DiskLimits limits;                               // of what is written
  uint32_t restore_threads = 2;                    // that read one segment
  uint64_t reserve_bytes = 256u << 20;             // bytes of the disk that stay free
  absl::Duration retry_after = absl::Seconds(30);  // when a segment could not be read
  // How long Close() goes on writing queued segments; the rest is not written.
  absl::Duration stop_timeout = absl::Seconds(5);
  std::function<absl::StatusOr<std::unique_ptr<SegmentStorage>>(RocksDbStorageOptions)>
      open_storage = OpenRocksDbSegmentStorage;
};

// One segment to read back into the arena.
struct SegmentToRead {
  SegmentName name;
  std::span<std::byte> image;  // of the record's size
  // Not 0: so many bytes of the image, its index, come first; those of all segments of the job
  // before the rest of any.
  uint64_t index_bytes = 0;
};

// Consecutive segments of one prefix.
struct RestoreJob {
  std::vector<SegmentToRead> segments;
  // Called in order for each segment whose index has been read and fits its checksums, if it is to
  // come first; not where the disk has an image that can only be read as a whole. Errors as below.
  absl::AnyInvocable<absl::Status(size_t, const std::shared_ptr<PartialImage>&)> on_index;
  // Called for each segment that will not be read: its own read or that of one before has failed.
  // Only where indexes come first.
  absl::AnyInvocable<void(size_t)> on_lost;
  // Called in order for each segment whose image was read and fits its checksums, with the token
  // ids that the disk has for the segment. An error ends the job. INVALID_ARGUMENT (the image is no
  // segment, or the name does not follow from the token ids) puts the segment into quarantine.
  absl::AnyInvocable<absl::Status(size_t, std::vector<int32_t>)> on_read;
  absl::AnyInvocable<void()> done;  // called once, last: the job writes to no image any more
};

// Threads: all methods on any thread. Callbacks run on threads of this object, except that Offer()
//          may call its request's `done` at once: a caller must hold no lock that `done` takes.
// Owns:    the storage, the persister and the thread that reads; not the images.
class DurableTier {
 public:
  struct Stats {
    StorageStats storage;
    Persister::Stats persister;
    DiskBudget::Stats budget;
    uint64_t pinned_contexts = 0;
    uint64_t pinned_bytes = 0;    // of the segments of pinned contexts
    uint64_t restored_total = 0;  // segments
    uint64_t restored_bytes_total = 0;
    // Segments on the disk that could not be read; not those that were deleted before the read.
    uint64_t restore_failures_total = 0;
    double restore_seconds_total = 0;
    // Of segments that come in parts: bytes of their indexes, bytes that were asked for, and bytes
    // that came behind; calls that asked, and their time.
    uint64_t index_bytes_total = 0, asked_bytes_total = 0, behind_bytes_total = 0;
    uint64_t part_requests_total = 0;
    double part_request_seconds_total = 0;
    uint64_t limit_bytes = 0;  // DiskLimits::cap_bytes
    // Size of the folder's file system, and bytes that this process may still write; 0: not known.
    uint64_t disk_bytes = 0, disk_free_bytes = 0;
  };

  // Opens the storage in `options.folder`. Errors as OpenRocksDbSegmentStorage(). `is_referenced`
  // as for DiskBudget.
  static absl::StatusOr<std::unique_ptr<DurableTier>> Open(
      const DurableTierOptions& options, std::function<bool(const SegmentName&)> is_referenced);

  DurableTier(const DurableTierOptions& options, std::unique_ptr<SegmentStorage> storage,
              std::function<bool(const SegmentName&)> is_referenced);
  ~DurableTier();  // closes

  // Writes queued segments for options.stop_timeout at most, if the disk works; logs how many were
  // not written; closes the storage. From then on nothing is written or restored.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  // Queues a committed segment to be written, as Persister::Offer().
  void Offer(PersistRequest request) { persister_.Offer(std::move(request)); }

  // Queues a segment that a user wants to keep, as Persister::Persist().
  void Persist(PersistRequest request) { persister_.Persist(std::move(request)); }
  // Calls `work` about twice a minute while nothing is read (more often where contexts have short
  // times to live), on a thread of this object, until Close() returns.
  void WhenIdle(std::function<void()> work) ABSL_LOCKS_EXCLUDED(mutex_);
  bool is_closing() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool writes_through() const { return options_.mode == PersistMode::kWriteThrough; }

  // For contexts: their records are in the storage, and evictions go through the budget.
  SegmentStorage& storage() { return *storage_; }
  DiskBudget& budget() { return budget_; }
  const std::string& folder() const { return options_.folder; }
  uint64_t reserve_bytes() const { return options_.reserve_bytes; }

  // Returns the record of a segment on the disk; nothing if there is none, or if a read of it
  // failed within options.retry_after. Reads memory only.
  std::optional<SegmentRecord> Peek(const SegmentName& name) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the records of the children, as SegmentStorage::Children(), that Peek() would return.
  std::vector<SegmentRecord> Children(const SegmentName& parent) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the records of all segments on the disk, ordered by name. Reads memory only.
  std::vector<SegmentRecord> List();
  // Notes that the segments were used now.
  void Touch(std::span<const SegmentName> names);
  // Queues a job.
  void Restore(RestoreJob job) ABSL_LOCKS_EXCLUDED(mutex_);

  // Parts of an image that are wanted before the rest.
  struct PartsWanted {
    SegmentName name;
    std::shared_ptr<PartialImage> image;
    std::vector<PartRun> runs;
  };
  // Returns when the parts are there; what comes behind waits meanwhile. A segment of which a part
  // cannot be read is left alone for options.retry_after. Errors as PartialImage::Fetch().
  absl::Status Fetch(std::span<const PartsWanted> wanted) ABSL_LOCKS_EXCLUDED(mutex_);
  // What jobs have not read but for its index is not read any more.
  void DropRests() ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until no queued segment or job needs an image any more. Returns false after `timeout`.
  bool Drain(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);

  Stats stats() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Whether a read of the segment failed within options.retry_after.
  bool HasFailed(const SegmentName& name) ABSL_LOCKS_EXCLUDED(mutex_);
  // A job whose indexes are there, and what is left of it.
  struct Rest {
    RestoreJob job;
    std::vector<std::shared_ptr<PartialImage>> images;  // by segment; null: it has failed
    size_t next = 0;                                    // segment
    uint64_t num_drops = 0;                             // when the job began
  };

  void Run();
  void TendFolder();
  void RunJob(RestoreJob job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Reads the indexes of the job's segments, as far as they can be read.
  Rest ReadIndexes(RestoreJob job) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status ReadIndex(RestoreJob& job, size_t index, std::shared_ptr<PartialImage>* image)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Reads a piece of what is left. Returns whether nothing is left behind it.
  bool RunRest(Rest& rest) ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsDropped(const Rest& rest) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(RestoreJob& job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the oldest rest: nothing is written to its images any more.
  void EndRest() ABSL_LOCKS_EXCLUDED(mutex_);
  // Logs a segment that could not be read; counts it, unless it was deleted.
  void NoteUnread(const SegmentName& name, const absl::Status& status, absl::Time begun)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Logs and counts a segment that could not be read, or handed over.
  void NoteFailure(const SegmentName& name, const absl::Status& status, absl::Time begun)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status ReadOne(const SegmentToRead& segment, std::vector<int32_t>* token_ids);
  // Calls on_read for a segment that was read; quarantines the segment on INVALID_ARGUMENT.
  absl::Status HandOver(RestoreJob& job, size_t index, std::vector<int32_t> token_ids);
  bool WorkOrStop() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !jobs_.empty() || (num_rests_ > 0 && num_fetches_ == 0);
  }
  bool NoJobs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_jobs_ == 0; }

  const DurableTierOptions options_;
  const std::unique_ptr<SegmentStorage> storage_;
  DiskBudget budget_;
  Persister persister_;

  mutable absl::Mutex mutex_;
  std::deque<RestoreJob> jobs_ ABSL_GUARDED_BY(mutex_);
  size_t num_jobs_ ABSL_GUARDED_BY(mutex_) = 0;  // queued and running
  size_t num_rests_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t num_fetches_ ABSL_GUARDED_BY(mutex_) = 0;  // under way
  uint64_t num_drops_ ABSL_GUARDED_BY(mutex_) = 0;  // of DropRests()
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> when_idle_ ABSL_GUARDED_BY(mutex_);
  std::map<SegmentName, absl::Time> failed_ ABSL_GUARDED_BY(mutex_);  // not read until then
  uint64_t restored_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t restored_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t failures_ ABSL_GUARDED_BY(mutex_) = 0;
  double restore_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t index_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t asked_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t behind_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t part_requests_ ABSL_GUARDED_BY(mutex_) = 0;
  double part_request_seconds_ ABSL_GUARDED_BY(mutex_) = 0;

  std::deque<Rest> rests_;  // of thread_ alone

  std::thread thread_;
};

}  // namespace retroinfer::kvstore
