// The SegmentStore that the kv_store_service serves, through a StoreLink.
#pragma once

#include "gpu_worker/engine/segment_store.h"
#include "gpu_worker/store_link/store_link.h"

namespace retroinfer {

// Threads: as SegmentStore. Owns nothing; the link outlives it.
class LinkedSegmentStore final : public SegmentStore {
 public:
  explicit LinkedSegmentStore(StoreLink& link) : link_(link) {}

  uint32_t arena_pages() const override { return link_.arena_pages(); }
  bool attached() const override { return link_.state() == StoreLink::State::kAttached; }
  uint64_t num_reattached() const override { return link_.num_reattached(); }
  void Reserve(uint64_t sequence_id, std::vector<uint32_t> segment_tokens,
               ReserveCallback callback) override;
  // A segment that the store refuses stays in use by its sequence, which holds the extent in any
  // case; the refusal is logged, since it means that one of the two sides is wrong.
  void Commit(uint64_t sequence_id, uint64_t extent_id, int64_t token_begin) override;
  void Release(uint64_t sequence_id) override;

 private:
  StoreLink& link_;
};

}  // namespace retroinfer
