// The store of a rank above 0, which speaks with none: what it has written is told to rank 0.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/log/check.h"
#include "gpu_worker/engine/segment_store.h"
#include "gpu_worker/ranks/rank_messages.h"

namespace retroinfer {

// Threads: the executor's.
class WrittenSegments final : public SegmentStore {
 public:
  // What was written since the last call.
  std::vector<WrittenSegment> Take() { return std::exchange(written_, {}); }

  void Commit(uint64_t sequence_id, CommittedSegment segment) override {
    written_.push_back({.holder = sequence_id, .extent_id = segment.extent_id});
  }
  void Commit(uint64_t sequence_id, std::vector<CommittedSegment> segments) override {
    for (CommittedSegment& segment : segments) Commit(sequence_id, std::move(segment));
  }

  uint32_t arena_pages() const override { return 0; }
  bool attached() const override { return false; }
  uint64_t num_reattached() const override { return 0; }
  // Extents come by commands.
  void Reserve(ReserveRequest /*request*/, ReserveCallback /*callback*/) override {
    RI_CHECK(false);
  }
  void Release(uint64_t /*sequence_id*/) override { RI_CHECK(false); }

 private:
  std::vector<WrittenSegment> written_;
};

}  // namespace retroinfer
