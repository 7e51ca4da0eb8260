// The SegmentStore that the kv_store_service serves, through a StoreLink.
#pragma once

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

  using SegmentStore::Commit;
  // A segment that the store refuses stays in use by its sequence, which holds the extent in any
  // case; the refusal is logged, since it means that one of the two sides is wrong.
  void Commit(uint64_t sequence_id, std::vector<CommittedSegment> segments) override {
    const uint64_t extent_id = segments.front().extent_id;
    link_.Commit(sequence_id, std::move(segments),
                 [sequence_id, extent_id](const absl::Status& status) {
                   // Cancelled: the link was closed, or the sequence released before its turn.
                   if (!status.ok() && !absl::IsCancelled(status)) {
                     spdlog::error("commit of extent {} of sequence {}: {}", extent_id, sequence_id,
                                   status.ToString());
                   }
                 });
  }

  void Release(uint64_t sequence_id) override { link_.Release(sequence_id); }

 private:
  StoreLink& link_;
};

}  // namespace retroinfer
