#include "kv_store_service/store/kv_store.h"

namespace retroinfer::kvstore {

KvStore::KvStore(Options options, StateFile state_file)
    : leases_(std::move(options), std::move(state_file), &state_) {}

KvStore::~KvStore() {
  // Its callbacks need everything else.
  tier_.reset();
}

void KvStore::SetDurableTier(std::unique_ptr<DurableTier> tier) {
  tier_ = std::move(tier);
  bridge_ = std::make_unique<TierBridge>(tier_.get(), [this](absl::FunctionRef<void()> work) {
    absl::MutexLock lock(&state_.mutex);
    work();
  });
  state_.bridge = bridge_.get();
}

StoreStats KvStore::stats() const {
  StoreStats stats;
  if (tier_ != nullptr) stats.durable = tier_->stats();
  stats.durable_missing = !missing_tier_.ok();
  absl::MutexLock lock(&state_.mutex);
  leases_.AddStats(&stats);
  reservations_.AddStats(&stats);
  const SegmentsOfArena& current = state_.current;
  stats.arena_pages = current.arena == nullptr ? 0 : current.arena->num_pages();
  stats.free_pages = stats.largest_free_pages = stats.arena_pages;
  if (bridge_ != nullptr) stats.durable_skipped = bridge_->num_skipped();
  if (current.segments != nullptr) AddSegmentStats(*current.segments, &stats);
  return stats;
}

}  // namespace retroinfer::kvstore
