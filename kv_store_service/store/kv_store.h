// The store's state, as RPCs and the descriptor socket use it: joins the worker's lease, the arena,
// its segments, the way to the disk and what contexts keep, each of which can be read alone:
//
//   lease/worker_lease.h        who may use the arena
//   lease/worker_plane.h        its data plane
//   lease/former_workers.h      who may still write to the arena
//   arena/arena.h               the memory
//   directory/arena_segments.h  what is in it
//   tier/tier_bridge.h          the way to the disk
//   tier/kept_names.h       what contexts keep
//
// One lock keeps them consistent. Nothing that takes long happens under it: no disk, no memory
// that is allocated or given back, no page of the arena or of a data plane.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock/steady_now.h"
#include "common/kv/kv_geometry.h"
#include "common/kv/named_segment.h"
#include "common/shm/sealed_memory.h"
#include "common/shm/unique_fd.h"
#include "kv_store_service/arena/arena.h"
#include "kv_store_service/directory/arena_segments.h"
#include "kv_store_service/lease/former_workers.h"
#include "kv_store_service/lease/state_file.h"
#include "kv_store_service/lease/worker_lease.h"
#include "kv_store_service/store/store_stats.h"
#include "kv_store_service/tier/durable_tier.h"
#include "kv_store_service/tier/kept_names.h"
#include "kv_store_service/tier/tier_bridge.h"

namespace retroinfer::kvstore {

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

// Threads: all methods on any thread. Lock order: attach_mutex_ or note_mutex_, then mutex_, then
//          the tier's locks.
// Owns:    the arena, the data planes and their threads, the disk tier.
class KvStore {
 public:
  struct Options {
    Watermarks watermarks;
    std::string descriptor_socket_path;                  // told to workers
    absl::Duration attach_timeout = absl::Seconds(5);    // from Attach() to the connection
    uint64_t handed_back_bytes_max = uint64_t{8} << 40;  // arena that a worker may hand back
    // How long a worker that lays the same memory out anew waits for the disk.
    absl::Duration disk_drain_timeout = absl::Seconds(20);
    // Whether the process that attached with this token may still run; empty: it does not.
    std::function<bool(const std::string& token)> worker_lives;
    // Makes the memory of a data plane; empty: as SealedMemory::Create().
    WorkerPlane::MakeMemory make_plane_memory;
  };

  KvStore(Options options, StateFile state_file);
  ~KvStore();

  // Gives the store a disk. REQUIRES: no other method but IsReferenced() was called yet.
  void SetDurableTier(std::unique_ptr<DurableTier> tier);
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
  // As KeptNames::Pin() and Hold(). Segments that are held are written as soon as they are
  // committed, and not evicted from the disk.
  using NameSet = KeptNames::NameSet;
  void PinNames(NameSet names) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    kept_.Pin(std::move(names));
  }
  absl::Status Hold(std::span<const SegmentName> names, absl::Time until)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return kept_.Hold(names, until, common::SteadyNow());
  }
  // Where each of the segments is in the arena: the pages it takes, 0 if it is not there.
  std::vector<uint64_t> PagesInArena(std::span<const SegmentName> names) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts to write those of the segments that are in the arena and neither on the disk nor about
  // to be; `failed` is called, on any thread, for each that cannot be written.
  void PersistNow(std::span<const SegmentName> names, const TierBridge::PersistFailed& failed)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Evicts those of the segments that are in the arena and that nobody uses.
  void DropFromArena(std::span<const SegmentName> names) ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t arena_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Lets only the worker of `note`, or one with the same geometry and fingerprint, attach, by
  // handing its memory back.
  void AwaitAdoption(const StateNote& note) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    lease_.AwaitAdoption(note);
  }
  enum class Adoption { kPending, kAdopted, kGivenUp };
  // Returns what became of AwaitAdoption(). Gives up (the store is starting again, and free to get
  // a new arena) when `deadline` has passed or the worker is known to be dead, unless a worker is
  // just handing its memory back.
  Adoption PollAdoption(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives the store its arena. REQUIRES: the store is starting.
  void SetArena(common::SealedMemory memory) ABSL_LOCKS_EXCLUDED(mutex_);

  // See the RPCs of the same names in kv_store.proto for the errors.
  absl::StatusOr<AttachResult> Attach(const AttachParameters& parameters)
      ABSL_LOCKS_EXCLUDED(attach_mutex_, mutex_);
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
  // Part `index`, from 0, of what a worker holds that handed its memory back.
  absl::Status Declare(const std::string& token, uint64_t index, const Declaration& part,
                       bool is_last) ABSL_LOCKS_EXCLUDED(mutex_);
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
  // Returns: PERMISSION_DENIED unless the token is that of an attachment that waits for this;
  //          UNAVAILABLE if the disk still needs what this worker would write over.
  //          HandBack(): FAILED_PRECONDITION if another worker had the arena since;
  //          INVALID_ARGUMENT if the memory is not what the worker declared; the attachment is over
  //          then.
  absl::StatusOr<DescriptorPair> ClaimDescriptors(const std::string& token, pid_t pid)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status HandBack(const std::string& token, pid_t pid, common::UniqueFd arena,
                        common::UniqueFd data_plane) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the attachment, if `token` is the present one. Its worker may live and write on: see
  // lease/former_workers.h.
  void EndLease(const std::string& token, const std::string& reason) ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasLease(const std::string& token) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return lease_.CheckToken(token).ok() && lease_.holder() != nullptr;
  }
  // Ends an attachment whose worker did not connect in time, and takes pages of former workers back
  // whose process is gone. To be called now and then. Returns whether to call again soon.
  bool Tend(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // What has ended, to be destroyed and finished without the lock.
  struct Ended {
    std::vector<std::shared_ptr<WorkerPlane>> planes;
    std::vector<FormerWorker> workers;
    std::vector<SegmentsOfArena> before;
  };

  // Waits until the handed back memory may be laid out anew, and checks that it is the awaited one.
  absl::Status CheckHandedBack(const std::string& token, const Arena& arena)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until the disk needs no bytes of the arena any more. The lock is free meanwhile: what was
  // checked before may have changed. When this returns OK, and as long as the caller keeps the
  // lock, no disk work is under way.
  absl::Status AwaitNoDiskWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the segments and the lease fit the worker that just connected.
  void StartLease(std::shared_ptr<WorkerPlane> plane, pid_t pid, Ended* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Replaces arena and segments. A null arena: keeps it.
  void Replace(ArenaRef arena, std::shared_ptr<ArenaSegments> segments, Ended* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the attachment; `is_gone`: its worker writes no more.
  void EndAttachment(const std::string& reason, bool is_gone, Ended* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends threads and counts what they did; makes the note true.
  void Finish(Ended ended) ABSL_LOCKS_EXCLUDED(mutex_, note_mutex_);
  // Writes or removes the note to the next store process, as the lease is now.
  void NoteLease() ABSL_LOCKS_EXCLUDED(mutex_, note_mutex_);
  // Takes the pages of former workers back whose process is gone. Returns whether some are left.
  bool ReadmitFormerPages() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  std::unique_ptr<DurableTier> tier_;   // constant once set; its callbacks lock mutex_
  std::unique_ptr<TierBridge> bridge_;  // constant once set; null without a tier; under mutex_
  absl::Status missing_tier_;           // constant once set

  absl::Mutex attach_mutex_;  // one data plane at a time is made
  absl::Mutex note_mutex_;    // guards the file
  StateFile state_file_;

  mutable absl::Mutex mutex_;
  WorkerLease lease_ ABSL_GUARDED_BY(mutex_);
  FormerWorkers former_ ABSL_GUARDED_BY(mutex_);
  // Null until there is an arena; no segments until the first lease; fingerprint of the last lease.
  SegmentsOfArena here_ ABSL_GUARDED_BY(mutex_);
  KeptNames kept_ ABSL_GUARDED_BY(mutex_);
  // What a plane has counted is with the plane of the lease, then with an ending one, then in the
  // sum: in exactly one of them at any time.
  std::vector<std::shared_ptr<WorkerPlane>> ending_planes_ ABSL_GUARDED_BY(mutex_);
  DataPlaneStats ended_planes_ ABSL_GUARDED_BY(mutex_);
  PrefixCounters ended_prefix_ ABSL_GUARDED_BY(mutex_);  // of earlier segments
  uint64_t workers_attached_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t adoptions_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t segments_committed_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t segments_refused_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t reservations_refused_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace retroinfer::kvstore
