// Moves named segments between the arena and the disk; no call waits for the disk.
//
// A segment that is being written is pinned. A segment that is being read belongs to a sequence of
// the store's own, so that nobody else gets its pages, and a reservation that wants the segment
// waits. The disk's threads work with the bytes while the store goes on: each write or read holds
// the arena and the segments that it began with, and ends in those, even if the store has others by
// then. Where a new worker would lay the same memory out anew, the store waits until is_idle().
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
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

// Threads: the owner calls all methods under its lock, but Submit() without the lock. The disk's
//          threads take the same lock through `locked`.
// Owns:    nothing of the disk; the pins and the store's own sequences of reads and writes that are
//          under way.
class TierBridge {
 public:
  using NameSet = absl::flat_hash_set<SegmentName>;
  using Locked = std::function<void(absl::FunctionRef<void()>)>;

  // Writes that have been prepared.
  struct ToPersist {
    std::vector<PersistRequest> offered;  // written as far as the disk has time
    std::vector<PersistRequest> wanted;   // written in any case: a context is being saved
  };
  using PersistFailed = std::function<void(const SegmentName&, const absl::Status&)>;

  // `locked` runs what it gets under the owner's lock.
  // REQUIRES: `tier` is closed before this object ends.
  TierBridge(DurableTier* tier, Locked locked);
  ~TierBridge();

  // Prepares writes of those segments that have a name, are not durable and are not being written;
  // pins these segments. A segment that `pins` has for a save is written in any case. Others are
  // written if the tier writes through; but where segments that wait for a slow disk hold too much
  // of the arena already, further ones are deferred until the disk has written some.
  ToPersist Prepare(const SegmentsOfArena& from, std::span<const ExtentRecord> segments,
                    const ContextPins& pins);
  // Prepares writes of segments in the arena by their names, whatever the tier's mode. `failed` is
  // called, on any thread, for each segment that cannot be written. Segments of another model are
  // not written: adds their names to `of_another_model`.
  ToPersist PrepareNamed(const SegmentsOfArena& from, std::span<const SegmentName> names,
                         const PersistFailed& failed, std::vector<SegmentName>* of_another_model);
  // Hands the writes over to the disk. To be called without the lock: a write that the disk refuses
  // ends at once, and its end takes the lock to unpin the segment.
  void Submit(ToPersist prepared);

  // Starts to read back the segments on the disk that follow the committed segments of a request;
  // of a request for rows, the pieces on the disk that a walk over arena and disk finds (TierRows).
  void StartRestore(const SegmentsOfArena& into, const ReserveRequest& request);

  // Returns the image of a segment that is partial; null: it is not.
  std::shared_ptr<PartialImage> PartialOf(const SegmentsOfArena& of, uint64_t extent_id) const;
  // The runs of PartsOfExtent. REQUIRES: an even number of numbers.
  static std::vector<PartRun> RunsOf(std::span<const uint32_t> numbers);
  // Those of the partial segments of which a read has failed are found by nobody any more, and
  // nobody waits for them: who has one keeps what is there.
  void AbandonFailed(const SegmentsOfArena& of, std::span<const uint64_t> extent_ids);
  // DurableTier::Fetch(). To be called without the lock.
  absl::Status Fetch(std::span<const DurableTier::PartsWanted> wanted) {
    return tier_.Fetch(wanted);
  }

  // Tells the disk that these cached segments were used: it evicts the least recently used first.
  void Touch(std::span<const ExtentRecord> cached);

  // Whether no segment is being written or read back.
  bool is_idle() const { return writing_.empty() && num_restoring_ == 0; }
  // Gives up all deferred writes, and what is read behind what was asked for. To be called before
  // waiting until is_idle().
  void DropDeferred();
  // Deferred segments that left the arena before the disk had time for them.
  uint64_t num_skipped() const { return num_skipped_; }
  size_t num_deferred() const { return deferred_.size(); }

 private:
  // A write that waits for the disk. The segment is not pinned, and its arena may go meanwhile.
  struct Deferred {
    std::weak_ptr<const Arena> arena;
    std::weak_ptr<ArenaSegments> segments;
    std::string fingerprint;
    SegmentName name;
  };
  void Defer(const SegmentsOfArena& from, const SegmentName& name);
  // Hands those deferred writes over to the disk that may begin now. Not under the lock.
  void SubmitDeferred();
  ToPersist TakeDeferred();
  // Whether segments that wait for the disk hold so much of the arena that further writes are
  // deferred.
  static bool HoldsTooMuch(const SegmentsOfArena& of);
  // Reads the records' images into the extents that the store's own sequence reserved for them;
  // `index_first`: their indexes before the rest.
  void Read(const SegmentsOfArena& into, uint64_t sequence_id,
            const std::vector<SegmentRecord>& records, const Reservation& reservation,
            bool index_first);
  // Lets requests find a segment whose index has been read, on a thread of the disk.
  absl::Status MarkPartial(const SegmentsOfArena& into, uint64_t sequence_id,
                           SegmentToCommit segment, const std::shared_ptr<PartialImage>& image);
  PersistRequest MakeRequest(const SegmentsOfArena& from, const ExtentRecord& segment);
  // Commits one segment whose image has been read, on a thread of the disk.
  absl::Status CommitRead(const SegmentsOfArena& into, uint64_t sequence_id,
                          SegmentToCommit segment, std::vector<int32_t> token_ids);

  DurableTier& tier_;
  const Locked locked_;
  NameSet writing_;           // writes that were prepared and have not ended
  size_t num_restoring_ = 0;  // jobs that read from the disk
  uint64_t last_own_sequence_ = kOwnSequences;
  // Images of partial segments, by their extents.
  using PlaceOfImage = std::pair<const ArenaSegments*, uint64_t>;
  absl::flat_hash_map<PlaceOfImage, std::shared_ptr<PartialImage>> partial_;
  std::deque<Deferred> deferred_;  // the oldest first, each name once
  NameSet deferred_names_;
  uint64_t num_skipped_ = 0;
};

}  // namespace retroinfer::kvstore
