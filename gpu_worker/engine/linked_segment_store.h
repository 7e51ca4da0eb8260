// The SegmentStore that the kv_store_service serves, through a StoreLink.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "gpu_worker/engine/segment_store.h"
#include "gpu_worker/store_link/store_link.h"
#include "spdlog/spdlog.h"

namespace retroinfer {

// Threads: as SegmentStore. Owns nothing; the link outlives it.
class LinkedSegmentStore final : public SegmentStore {
 public:
  explicit LinkedSegmentStore(StoreLink& link) : link_(link) {}

  uint32_t arena_pages() const override { return link_.arena_pages(); }
  bool attached() const override { return link_.state() == StoreLink::State::kAttached; }
  uint64_t num_reattached() const override { return link_.num_reattached(); }

  bool memory_taken() const override { return link_.memory_taken(); }

  void Reserve(ReserveRequest request, ReserveCallback callback) override {
    link_.Reserve(std::move(request), std::move(callback));
  }

  void Commit(uint64_t sequence_id, CommittedSegment segment) override {
    std::vector<CommittedSegment> segments;
    segments.push_back(std::move(segment));
    CommitAll(sequence_id, std::move(segments));
  }

  // In calls of bounded size: the store reads no message of more, and holds its lock meanwhile.
  void Commit(uint64_t sequence_id, std::vector<CommittedSegment> segments) override {
    for (size_t begin = 0; begin < segments.size(); begin += kSegmentsPerCall) {
      const size_t end = std::min(segments.size(), begin + kSegmentsPerCall);
      CommitAll(sequence_id, {std::make_move_iterator(segments.begin() + begin),
                              std::make_move_iterator(segments.begin() + end)});
    }
  }

  void Release(uint64_t sequence_id) override { link_.Release(sequence_id); }

  bool serves_parts() const override { return true; }
  void FetchParts(std::vector<PartsOfExtent> wanted, PartsCallback callback) override {
    link_.FetchParts(std::move(wanted), std::move(callback));
  }

 private:
  static constexpr size_t kSegmentsPerCall = 4096;

  // Segments that the store refuses stay in use by their sequence, which holds the extents in any
  // case; the refusal is logged, since it means that one of the two sides is wrong.
  void CommitAll(uint64_t sequence_id, std::vector<CommittedSegment> segments) {
    const uint64_t extent_id = segments.front().extent_id;
    const size_t num_segments = segments.size();
    link_.Commit(sequence_id, std::move(segments),
                 [sequence_id, extent_id, num_segments](const absl::Status& status) {
                   // Cancelled: the link was closed, or the sequence released before its turn.
                   if (status.ok() || absl::IsCancelled(status)) return;
                   spdlog::error("commit of {} extents from {} on of sequence {}: {}", num_segments,
                                 extent_id, sequence_id, status.ToString());
                 });
  }

  StoreLink& link_;
};

}  // namespace retroinfer
