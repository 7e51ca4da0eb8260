// Who has the arena: attachments, the lease that a worker's connection gives, memory that a worker
// hands back to a restarted store, and leases that have expired while their worker may still run.
//
//   lease/worker_lease.h        who may call
//   lease/worker_planes.h       the worker's data planes
//   lease/expired_leases.h      who may still write to the arena
//   lease/handed_back_memory.h  what a worker hands back
//   lease/state_file.h          what the next store process is told
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/shm/sealed_memory.h"
#include "common/shm/unique_fd.h"
#include "kv_store_service/arena/arena.h"
#include "kv_store_service/directory/arena_segments.h"
#include "kv_store_service/lease/expired_leases.h"
#include "kv_store_service/lease/state_file.h"
#include "kv_store_service/lease/worker_lease.h"
#include "kv_store_service/store/store_state.h"
#include "kv_store_service/store/store_stats.h"

namespace retroinfer::kvstore {

struct AttachResult {
  std::string token;              // kAttachTokenBytes
  uint64_t arena_bytes = 0;       // 0 with hand_back
  uint64_t data_plane_bytes = 0;  // of each; 0 with hand_back
  bool store_writes_arena = false;
};

// Descriptors of the memory that a worker receives, or hands back.
struct MemoryDescriptors {
  common::UniqueFd arena;
  std::vector<common::UniqueFd> data_planes;  // by rank
};

// Threads: all methods on any thread. Lock order: attach_mutex_ or note_mutex_, then state's mutex.
//          Planes are made, memory is given back and threads are ended without the state's mutex.
// Owns:    the data planes and their threads, the note to the next process; `state` outlives the
//          object.
class ArenaLeases {
 public:
  struct Options {
    Watermarks watermarks;
    absl::Duration attach_timeout = absl::Seconds(5);    // from Attach() to the connection
    uint64_t handed_back_bytes_max = uint64_t{8} << 40;  // arena that a worker may hand back
    // How long a worker that lays the same memory out anew waits for the disk.
    absl::Duration disk_drain_timeout = absl::Seconds(20);
    // Whether the process that attached with this token may still run; empty: it does not.
    std::function<bool(const std::string& token)> worker_lives;
    // Makes the memory of a data plane; empty: as SealedMemory::Create().
    WorkerPlanes::MakeMemory make_plane_memory;
  };

  ArenaLeases(Options options, StateFile state_file, StoreState* state)
      : options_(std::move(options)), state_(*state), state_file_(std::move(state_file)) {}

  // Gives the store its arena. REQUIRES: the store is starting.
  void SetArena(common::SealedMemory memory) ABSL_LOCKS_EXCLUDED(state_.mutex);
  // Lets only the worker of `note`, or one with the same geometry and fingerprint, attach, by
  // handing its memory back.
  void AwaitAdoption(const StateNote& note) ABSL_LOCKS_EXCLUDED(state_.mutex) {
    absl::MutexLock lock(&state_.mutex);
    state_.lease.AwaitAdoption(note);
  }
  enum class Adoption { kPending, kAdopted, kGivenUp };
  // Returns what became of AwaitAdoption(). Gives up (the store is starting again, and free to get
  // a new arena) when `deadline` has passed or the worker is known to be dead, unless a worker is
  // just handing its memory back.
  Adoption PollAdoption(absl::Time deadline) ABSL_LOCKS_EXCLUDED(state_.mutex);

  // See AttachWorker and DetachWorker in kv_store.proto for the errors.
  absl::StatusOr<AttachResult> Attach(const AttachParameters& parameters)
      ABSL_LOCKS_EXCLUDED(attach_mutex_, state_.mutex);
  absl::Status Detach(const std::string& token) ABSL_LOCKS_EXCLUDED(state_.mutex);

  // For the descriptor socket. Both start the lease of the attachment with this token; `pid` is the
  // peer's, 0 if unknown.
  //
  // Returns: PERMISSION_DENIED unless the token is that of an attachment that waits for this;
  //          UNAVAILABLE if the disk still needs what this worker would write over.
  //          HandBack(): FAILED_PRECONDITION if another worker had the arena since;
  //          INVALID_ARGUMENT if the memory is not what the worker declared; the attachment is over
  //          then.
  absl::StatusOr<MemoryDescriptors> ClaimDescriptors(const std::string& token, pid_t pid)
      ABSL_LOCKS_EXCLUDED(state_.mutex);
  absl::Status HandBack(const std::string& token, pid_t pid, MemoryDescriptors memory)
      ABSL_LOCKS_EXCLUDED(state_.mutex);
  // Ends the attachment, if `token` is the present one. Its worker may live and write on: see
  // lease/expired_leases.h.
  void EndLease(const std::string& token, const std::string& reason)
      ABSL_LOCKS_EXCLUDED(state_.mutex);
  bool HasLease(const std::string& token) const ABSL_LOCKS_EXCLUDED(state_.mutex) {
    absl::MutexLock lock(&state_.mutex);
    return state_.lease.CheckToken(token).ok() && state_.lease.holder() != nullptr;
  }
  // Ends an attachment whose worker did not connect in time, and takes back the pages of expired
  // leases whose process is gone. To be called now and then. Returns whether to call again soon.
  bool Tend(absl::Time now) ABSL_LOCKS_EXCLUDED(state_.mutex);

  // Rounds of the loops that serve the attached worker's planes, by rank; nothing without a worker.
  // Takes the lock that calls take, so this does not return where none of them could.
  std::optional<std::vector<uint64_t>> data_plane_rounds() const ABSL_LOCKS_EXCLUDED(state_.mutex);
  // Adds the worker that has the lease, and what data planes and earlier segments have counted.
  // REQUIRES: the caller holds the state's mutex.
  void AddStats(StoreStats* stats) const;

 private:
  // What a change of lease or memory leaves behind, to be ended by Finish(), without the lock.
  struct Ending {
    std::vector<std::shared_ptr<WorkerPlanes>> planes;
    std::vector<ExpiredLease> leases;
    std::vector<SegmentsOfArena> memory;
  };

  // Waits until the handed back memory may be laid out anew, and checks that it is the awaited one.
  absl::Status CheckHandedBack(const std::string& token, const Arena& arena)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  // Waits until the disk needs no bytes of the arena any more. The lock is free meanwhile: what was
  // checked before may have changed. When this returns OK, and as long as the caller keeps the
  // lock, no disk work is under way.
  absl::Status AwaitNoDiskWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  // Makes the segments and the lease fit the worker that just connected.
  void StartLease(std::shared_ptr<WorkerPlanes> planes, pid_t pid, Ending* ending)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  // Replaces arena and segments. A null arena: keeps the present one.
  void Replace(ArenaRef arena, std::shared_ptr<ArenaSegments> segments, Ending* ending)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  // Ends the attachment; `is_gone`: its worker writes no more.
  void EndAttachment(const std::string& reason, bool is_gone, Ending* ending)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  // Ends threads and counts what they did; makes the note true.
  void Finish(Ending ending) ABSL_LOCKS_EXCLUDED(state_.mutex, note_mutex_);
  // Writes or removes the note to the next store process, as the lease is now.
  void NoteLease() ABSL_LOCKS_EXCLUDED(state_.mutex, note_mutex_);
  // Takes back the pages of expired leases whose process is gone. Returns whether some are left.
  bool ReadmitExpiredPages() ABSL_LOCKS_EXCLUDED(state_.mutex);

  const Options options_;
  StoreState& state_;
  absl::Mutex attach_mutex_;  // the data planes of one worker at a time are made
  absl::Mutex note_mutex_;    // guards the file
  StateFile state_file_;

  ExpiredLeases expired_ ABSL_GUARDED_BY(state_.mutex);
  // What planes have counted is with those of the lease, then with an ending one, then in the
  // sum: in exactly one of them at any time.
  std::vector<std::shared_ptr<WorkerPlanes>> ending_planes_ ABSL_GUARDED_BY(state_.mutex);
  DataPlaneStats ended_planes_ ABSL_GUARDED_BY(state_.mutex);
  PrefixCounters ended_prefix_ ABSL_GUARDED_BY(state_.mutex);  // of earlier segments
  uint64_t workers_attached_ ABSL_GUARDED_BY(state_.mutex) = 0;
  uint64_t adoptions_ ABSL_GUARDED_BY(state_.mutex) = 0;
};

}  // namespace retroinfer::kvstore
