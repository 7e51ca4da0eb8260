// The store's state: the arena, the attached worker, and what the worker keeps.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/kv/kv_geometry.h"
#include "common/kv/named_segment.h"
#include "common/shm/sealed_memory.h"
#include "common/shm/unique_fd.h"
#include "kv_store_service/directory/segment_store.h"
#include "kv_store_service/server/data_plane_server.h"
#include "kv_store_service/server/durable_tier.h"
#include "kv_store_service/server/state_file.h"

namespace retroinfer::kvstore {

// What a worker asks for when it attaches.
struct AttachParameters {
  KvGeometry geometry;
  std::string model_fingerprint;
  uint32_t num_slots = 0;
  uint32_t log_capacity = 0;
  uint32_t request_capacity = 0;
  bool hand_back = false;
};

struct AttachResult {
  std::string token;              // kAttachTokenBytes
  uint64_t arena_bytes = 0;       // 0 with hand_back
  uint64_t data_plane_bytes = 0;  // 0 with hand_back
  bool store_writes_arena = false;
};

// Copies of the descriptors that a worker receives.
struct DescriptorPair {
  common::UniqueFd arena;
  common::UniqueFd data_plane;
};

// One extent for a listing.
struct ExtentListing {
  ExtentRecord record;
  size_t num_clusters = 0;
};

struct StoreStats {
  bool worker_attached = false;
  pid_t worker_pid = 0;
  KvGeometry geometry;
  std::string model_fingerprint;
  uint64_t arena_pages = 0;
  uint64_t free_pages = 0;
  uint64_t largest_free_pages = 0;
  uint64_t reserved_extents = 0;
  uint64_t committed_segments = 0;
  uint64_t sequences = 0;
  uint64_t clusters = 0;
  uint64_t named_segments = 0;
  uint64_t named_pages = 0;
  uint64_t unreferenced_pages = 0;  // of named segments that no sequence uses
  PrefixCounters prefix;            // of this process
  std::optional<DurableTier::Stats> durable;
  bool durable_missing = false;  // there was to be a disk tier and it could not be opened
  uint64_t durable_skipped = 0;  // segments not written because the disk is too slow
  DataPlaneStats data_plane;     // counters over all attachments of this process
  uint64_t workers_attached = 0;
  uint64_t adoptions = 0;
  uint64_t segments_committed = 0;  // in all
  uint64_t segments_refused = 0;
  uint64_t reservations_refused = 0;  // the arena was full
};

// Threads: all methods on any thread.
// Owns:    the arena, the data plane of the attached worker and its thread.
//
// Life: kStarting -> kReady by SetArena(); or kStarting -> kAwaitingAdoption by AwaitAdoption() ->
// kReady when a worker hands its memory back, or by SetArena() when none came.
//
// An attachment begins with Attach(), which promises nothing: a later Attach() replaces it. The
// worker's connection to the descriptor socket makes it the lease (ClaimDescriptors or HandBack).
// EndLease() frees everything but the named segments, which the next worker of the same geometry
// and fingerprint finds.
class KvStore {
 public:
  struct Options {
    Watermarks watermarks;
    std::string descriptor_socket_path;                  // told to workers
    absl::Duration attach_timeout = absl::Seconds(5);    // from Attach() to the connection
    uint64_t handed_back_bytes_max = uint64_t{8} << 40;  // arena that a worker may hand back
  };

  KvStore(Options options, StateFile state_file);
  ~KvStore();

  // Gives the store a disk. REQUIRES: no other method but IsReferenced() was called yet.
  void SetDurableTier(std::unique_ptr<DurableTier> tier) { tier_ = std::move(tier); }
  DurableTier* tier() const { return tier_.get(); }  // nullptr: there is none
  // Says why there is none although there was to be one. REQUIRES: as SetDurableTier().
  void NoteMissingTier(absl::Status why) { missing_tier_ = std::move(why); }
  const absl::Status& missing_tier() const { return missing_tier_; }  // OK: it is not missing
  // Whether a sequence, a write to the disk or a context that is being saved uses the segment of
  // that name.
  bool IsReferenced(const SegmentName& name) const ABSL_LOCKS_EXCLUDED(mutex_);

  // For contexts. The model of the attached worker, or nothing.
  struct AttachedModel {
    KvGeometry geometry;
    std::string fingerprint;
  };
  std::optional<AttachedModel> attached_model() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Replaces the segments that are not evicted from the arena, as SegmentStore::KeepNamed().
  using NameSet = absl::flat_hash_set<SegmentName>;
  void PinNames(NameSet names) ABSL_LOCKS_EXCLUDED(mutex_);
  // Until then, the segments are written as soon as they are committed, and not evicted from the
  // disk. InfinitePast() ends it. Returns RESOURCE_EXHAUSTED if too many are held already.
  absl::Status Hold(std::span<const SegmentName> names, absl::Time until)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Where each of the segments is in the arena: the pages it takes, 0 if it is not there.
  std::vector<uint64_t> PagesInArena(std::span<const SegmentName> names) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts to write those of the segments that are in the arena and neither on the disk nor about
  // to be; `failed` is called, on any thread, for each that cannot be written.
  using PersistFailed = std::function<void(const SegmentName&, const absl::Status&)>;
  void PersistNow(std::span<const SegmentName> names, const PersistFailed& failed)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Evicts those of the segments that are in the arena and that nobody uses.
  void DropFromArena(std::span<const SegmentName> names) ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t arena_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Lets only the worker of `note`, or one with the same geometry and fingerprint, attach, by
  // handing its memory back.
  void AwaitAdoption(const StateNote& note) ABSL_LOCKS_EXCLUDED(mutex_);
  enum class Adoption { kPending, kAdopted, kGivenUp };
  // Returns what became of AwaitAdoption(). Gives up (the store is starting again, and free to get
  // a new arena) when `deadline` has passed or the worker is known to be dead, unless a worker is
  // just handing its memory back.
  Adoption PollAdoption(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives the store its arena. REQUIRES: the store is starting.
  void SetArena(common::SealedMemory arena) ABSL_LOCKS_EXCLUDED(mutex_);

  // See the RPCs of the same names in kv_store.proto for the errors.
  absl::StatusOr<AttachResult> Attach(const AttachParameters& parameters)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Detach(const std::string& token) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Reservation> Reserve(const std::string& token, uint64_t call_number,
                                      const ReserveRequest& request, bool compute_anyway = false)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::vector<ExtentRecord>> Commit(const std::string& token, uint64_t call_number,
                                                   uint64_t sequence_id,
                                                   std::span<const SegmentToCommit> segments)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<uint64_t> Release(const std::string& token, uint64_t call_number,
                                   uint64_t sequence_id) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Restore(const std::string& token, std::span<const SequenceToRestore> sequences,
                       std::span<const SegmentToRestore> named = {}) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<ExtentListing> List(uint64_t after_extent_id, size_t limit) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  StoreStats stats() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Rounds of the loop that serves the attached worker; nothing without one. Takes the lock that
  // calls take, so it does not return where none of them could.
  std::optional<uint64_t> data_plane_rounds() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Records of the segments on the disk, ordered by name; nothing without a disk tier.
  std::optional<std::vector<SegmentRecord>> ListDurable() const {
    if (tier_ == nullptr) return std::nullopt;
    return tier_->List();
  }

  // For the descriptor socket. Both start the lease of the attachment with this token; `pid` is the
  // peer's, 0 if unknown.
  //
  // Returns: PERMISSION_DENIED unless the token is that of an attachment that waits for this.
  //          HandBack(): FAILED_PRECONDITION if another worker had the arena since;
  //          INVALID_ARGUMENT if the memory is not what the worker declared; the attachment is over
  //          then.
  absl::StatusOr<DescriptorPair> ClaimDescriptors(const std::string& token, pid_t pid)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status HandBack(const std::string& token, pid_t pid, common::UniqueFd arena,
                        common::UniqueFd data_plane) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the attachment, if `token` is the present one.
  void EndLease(const std::string& token, const std::string& reason) ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasLease(const std::string& token) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends an attachment whose worker did not connect in time. To be called now and then.
  void ExpireAttachment(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum class Phase { kStarting, kAwaitingAdoption, kReady };

  struct Attachment {
    std::string token;
    AttachParameters parameters;
    absl::Time claim_deadline;
    bool leased = false;
    bool restore_awaited = false;
    pid_t pid = 0;
    uint64_t last_call_number = 0;
    common::SealedMemory plane_memory;
    std::unique_ptr<DataPlaneServer> plane_server;  // reads plane_memory
  };

  absl::Status CheckAttach(const AttachParameters& parameters) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakeHandedBack(common::UniqueFd arena, common::UniqueFd data_plane)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartLease(const DataPlane& plane, pid_t pid) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the former worker that the arena is not its any more.
  void TakeArenaFromFormerWorker() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropSegments() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until the disk needs no bytes of the arena any more, if the lease that `token` is about
  // to start would change it. The lock is free meanwhile: what was checked before may have changed.
  // When this returns, and as long as the caller keeps the lock, no disk work is under way.
  absl::Status DrainTier(const std::string& token) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool NoDiskWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return writing_.empty() && num_restoring_ == 0;
  }
  // Segments on their way to the disk.
  struct ToPersist {
    std::vector<PersistRequest> offered;  // as far as the disk has time
    std::vector<PersistRequest> held;     // whatever the disk says
  };
  // Returns what makes those of the named segments durable that are not and are not on their way;
  // without those that a slow disk has no time for, which are counted, and those that nobody asked
  // to persist.
  ToPersist PersistRequestsFor(std::span<const ExtentRecord> segments)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Not under the lock: what is refused is unpinned at once.
  void Persist(ToPersist requests) ABSL_LOCKS_EXCLUDED(mutex_);
  // Pins a segment and returns what makes it durable; it is in writing_ until that is done.
  PersistRequest MakePersistRequest(const ExtentRecord& segment)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndPersist(uint64_t generation, uint64_t extent_id, const SegmentName& name)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts to read what follows the committed segments of a request, as far as it is on the disk.
  void StartRestore(const ReserveRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status EndRestoreOf(uint64_t generation, uint64_t sequence_id,
                            const SegmentToCommit& segment) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndRestore(uint64_t generation, uint64_t sequence_id) ABSL_LOCKS_EXCLUDED(mutex_);
  void TouchDurable(const Reservation& reservation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the segments fit the worker that just got its lease.
  void PrepareSegments(const AttachParameters& parameters) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndAttachment(const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Checks a call that changes segments and notes its number.
  absl::Status BeginCall(const std::string& token, uint64_t call_number, uint64_t sequence_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsHeld(const SegmentName& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto held = held_.find(name);
    return held != held_.end() && absl::Now() < held->second;
  }
  absl::Status CheckToken(const std::string& token) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  std::unique_ptr<DurableTier> tier_;  // constant once set; its callbacks lock mutex_
  absl::Status missing_tier_;          // constant once set

  mutable absl::Mutex mutex_;  // before the tier's locks
  StateFile state_file_ ABSL_GUARDED_BY(mutex_);
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kStarting;
  std::optional<StateNote> awaited_ ABSL_GUARDED_BY(mutex_);
  common::SealedMemory arena_ ABSL_GUARDED_BY(mutex_);
  // Data plane of the last worker, which is gone but may live and still read arena_.
  common::SealedMemory former_plane_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<SegmentStore> segments_ ABSL_GUARDED_BY(mutex_);  // reads arena_; since a lease
  std::optional<Attachment> attachment_ ABSL_GUARDED_BY(mutex_);
  NameSet pinned_ ABSL_GUARDED_BY(mutex_);  // not evicted from the arena
  absl::flat_hash_map<SegmentName, absl::Time> held_ ABSL_GUARDED_BY(mutex_);  // see Hold()
  NameSet writing_ ABSL_GUARDED_BY(mutex_);           // offered to the disk and not written yet
  size_t num_restoring_ ABSL_GUARDED_BY(mutex_) = 0;  // jobs that read from the disk
  std::string fingerprint_ ABSL_GUARDED_BY(mutex_);   // of the last lease: of new segments
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;   // of segments_
  uint64_t last_own_sequence_ ABSL_GUARDED_BY(mutex_) = kOwnSequences;
  PrefixCounters ended_prefix_ ABSL_GUARDED_BY(mutex_);  // counters of earlier segments_
  DataPlaneStats ended_planes_ ABSL_GUARDED_BY(mutex_);  // counters of earlier attachments
  uint64_t workers_attached_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t adoptions_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t durable_skipped_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t segments_committed_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t segments_refused_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t reservations_refused_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace retroinfer::kvstore
