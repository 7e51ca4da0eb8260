// The store as rank 0's engine sees it: a segment is committed when all ranks have written their
// part of it, and an extent goes back when all of them have let go of it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "gpu_worker/engine/segment_store.h"
#include "gpu_worker/ranks/rank_messages.h"

namespace retroinfer {

// Releases, and reservations behind them, wait for Settle(), in their order: when the engine
// releases a sequence, other ranks have not been told yet.
//
// Threads: the engine's; the getters any.
// Owns:    what waits. The store outlives it.
class JointSegmentStore final : public SegmentStore {
 public:
  // Segments of which not all ranks have said that they are written, at most.
  static constexpr size_t kMaxParts = size_t{1} << 20;

  JointSegmentStore(SegmentStore& store, int num_ranks) : store_(store), num_ranks_(num_ranks) {}

  uint32_t arena_pages() const override { return store_.arena_pages(); }
  bool attached() const override { return store_.attached(); }
  uint64_t num_reattached() const override { return store_.num_reattached(); }
  bool memory_taken() const override { return store_.memory_taken(); }

  void Reserve(ReserveRequest request, ReserveCallback callback) override;
  // Rank 0 has written its part of a segment.
  void Commit(uint64_t sequence_id, CommittedSegment segment) override;
  // Of saved blocks, whose copies all ranks have finished: they have answered
  // StepCommand::end_save.
  void Commit(uint64_t sequence_id, std::vector<CommittedSegment> segments) override {
    store_.Commit(sequence_id, std::move(segments));
  }
  void Release(uint64_t sequence_id) override { waiting_.emplace_back(sequence_id); }

  // Rank `rank`, of 1 and above, has written its part.
  //
  // Returns: INVALID_ARGUMENT if it has said so before; RESOURCE_EXHAUSTED beyond kMaxParts.
  absl::Status NoteWritten(int rank, const WrittenSegment& written);
  // All ranks have answered all commands: what waits goes to the store.
  void Settle();

 private:
  struct Parts {
    uint32_t ranks = 0;                       // a bit for each that has written
    std::optional<CommittedSegment> segment;  // once rank 0 has
  };
  struct Reservation {
    ReserveRequest request;
    ReserveCallback callback;
  };
  using Key = std::pair<uint64_t, uint64_t>;  // holder, extent

  void CommitIfComplete(std::map<Key, Parts>::iterator parts);

  SegmentStore& store_;
  const int num_ranks_;
  std::map<Key, Parts> parts_;
  std::vector<std::variant<uint64_t, Reservation>> waiting_;  // a sequence to release, or that
};

}  // namespace retroinfer
