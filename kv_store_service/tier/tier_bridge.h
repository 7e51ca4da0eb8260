// Moves named segments between the arena and the disk; nobody waits for the disk.
//
// A segment that is being written is pinned; one that is being read belongs to a sequence of the
// store's own, so that nobody else gets its pages and whoever wants it waits. The disk's threads
// work with the bytes while the store goes on. What they need lives as long as they need it: each
// piece of work holds the arena and the segments that it began with, and ends in those, whichever
// the store has by then. Where a new worker would lay the same memory out anew, the store waits
// until is_idle().
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/kv/named_segment.h"
#include "kv_store_service/arena/arena.h"
#include "kv_store_service/directory/arena_segments.h"
#include "kv_store_service/persistence/persister.h"
#include "kv_store_service/tier/context_pins.h"
#include "kv_store_service/tier/durable_tier.h"

namespace retroinfer::kvstore {

// The segments of an arena and what is needed to work with their bytes.
struct SegmentsOfArena {
  ArenaRef arena;
  std::shared_ptr<ArenaSegments> segments;
  std::string fingerprint;  // of the model of new segments
};

// Threads: the owner calls under its lock, but Submit(), which is called without it. What the
//          disk's threads bring back runs under that lock too, through `locked`.
// Owns:    nothing of the disk; the pins and sequences of what is under way.
class TierBridge {
 public:
  using NameSet = absl::flat_hash_set<SegmentName>;
  using Locked = std::function<void(absl::FunctionRef<void()>)>;

  // What has been prepared for the disk.
  struct ToPersist {
    std::vector<PersistRequest> offered;  // as far as the disk has time
    std::vector<PersistRequest> wanted;   // that somebody asked for
  };
  using PersistFailed = std::function<void(const SegmentName&, const absl::Status&)>;

  // `locked` runs what it gets under the owner's lock.
  // REQUIRES: `tier` is closed before this object ends.
  TierBridge(DurableTier* tier, Locked locked);
  ~TierBridge();

  // Chooses which of the segments are to be written now, pins them, and returns what writes them.
  // Only those that have a name, are not durable and not on their way. One that `pins` has for a
  // save is always written. The others are if the tier writes through; where segments that wait for
  // a slow disk hold too much of the arena already, they are put off until it has written some of
  // those.
  ToPersist Prepare(const SegmentsOfArena& from, std::span<const ExtentRecord> segments,
                    const ContextPins& pins);
  // The same for segments by their names, whatever the mode; `failed` is called, on any thread, for
  // each that cannot be written. Adds those that are of another model to `of_another_model`.
  ToPersist PrepareNamed(const SegmentsOfArena& from, std::span<const SegmentName> names,
                         const PersistFailed& failed, std::vector<SegmentName>* of_another_model);
  // Hands over to the disk. Not under the lock: what is refused is unpinned at once.
  void Submit(ToPersist prepared);

  // Starts to read what follows the committed segments of a request, as far as it is on the disk:
  // of a request for rows, what the way along them over arena and disk finds there.
  void StartRestore(const SegmentsOfArena& into, const ReserveRequest& request);

  // Notes the use of cached segments.
  void Touch(std::span<const ExtentRecord> cached);

  // Whether nothing is on its way, in either direction.
  bool is_idle() const { return writing_.empty() && num_restoring_ == 0; }
  // Gives up what was put off. For the owner who is about to wait until is_idle().
  void DropDeferred();
  // Segments that were put off and had left the arena before the disk had time for them.
  uint64_t num_skipped() const { return num_skipped_; }
  size_t num_deferred() const { return deferred_.size(); }

 private:
  // Waits for the disk without a pin. Its arena may be gone by then.
  struct Deferred {
    std::weak_ptr<const Arena> arena;
    std::weak_ptr<ArenaSegments> segments;
    std::string fingerprint;
    SegmentName name;
  };
  void Defer(const SegmentsOfArena& from, const SegmentName& name);
  // Hands over to the disk what may be written now of what was put off. Not under the lock.
  void SubmitDeferred();
  ToPersist TakeDeferred();
  // Whether segments that wait for the disk hold so much of the arena that others should not.
  static bool HoldsTooMuch(const SegmentsOfArena& of);
  // Reads records into the extents that a sequence of the store's own has for them.
  void Read(const SegmentsOfArena& into, uint64_t sequence_id,
            const std::vector<SegmentRecord>& records, const Reservation& reservation);
  PersistRequest MakeRequest(const SegmentsOfArena& from, const ExtentRecord& segment);
  // The end of one segment of a restore, on a thread of the disk.
  absl::Status CommitRead(const SegmentsOfArena& into, uint64_t sequence_id,
                          SegmentToCommit segment, std::vector<int32_t> token_ids);

  DurableTier& tier_;
  const Locked locked_;
  NameSet writing_;           // prepared for the disk and not done
  size_t num_restoring_ = 0;  // jobs that read from the disk
  uint64_t last_own_sequence_ = kOwnSequences;
  std::deque<Deferred> deferred_;  // the oldest first, each name once
  NameSet deferred_names_;
  uint64_t num_skipped_ = 0;
};

}  // namespace retroinfer::kvstore
