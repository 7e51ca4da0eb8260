// The store: its parts, joined under one lock, each of which can be read alone:
//
//   store/arena_leases.h      who has the arena: attachments, leases, memory handed back
//   store/reservations.h      a worker's sequences: reserve, commit, release, declare
//   store/context_segments.h  what contexts ask of the store
//   store/segment_listing.h   what is in the arena, and where its clusters are
//   store/store_state.h       what these share, and the lock
//
//   arena/arena.h               the memory
//   directory/arena_segments.h  what is in the memory
//   tier/tier_bridge.h          the way to the disk
//   tier/context_pins.h         what contexts keep
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "kv_store_service/lease/state_file.h"
#include "kv_store_service/store/arena_leases.h"
#include "kv_store_service/store/context_segments.h"
#include "kv_store_service/store/reservations.h"
#include "kv_store_service/store/segment_listing.h"
#include "kv_store_service/store/store_state.h"
#include "kv_store_service/store/store_stats.h"
#include "kv_store_service/tier/durable_tier.h"
#include "kv_store_service/tier/tier_bridge.h"

namespace retroinfer::kvstore {

// Threads: all methods on any thread, and so all methods of the parts.
// Owns:    the parts, the arena, the disk tier.
class KvStore {
 public:
  using Options = ArenaLeases::Options;

  KvStore(Options options, StateFile state_file);
  ~KvStore();

  // Gives the store a disk. REQUIRES: nothing but ContextSegments::IsReferenced() was called yet.
  void SetDurableTier(std::unique_ptr<DurableTier> tier);
  DurableTier* tier() const { return tier_.get(); }  // nullptr: there is none
  // Says why there is no disk although there was to be one. REQUIRES: as SetDurableTier().
  void NoteMissingTier(absl::Status why) { missing_tier_ = std::move(why); }
  const absl::Status& missing_tier() const { return missing_tier_; }  // OK: it is not missing

  ArenaLeases& leases() { return leases_; }
  const ArenaLeases& leases() const { return leases_; }
  Reservations& reservations() { return reservations_; }
  ContextSegments& context_segments() { return context_segments_; }
  const SegmentListing& listing() const { return listing_; }

  // Records of the segments on the disk, ordered by name; nothing without a disk tier.
  std::optional<std::vector<SegmentRecord>> ListDurable() const {
    if (tier_ == nullptr) return std::nullopt;
    return tier_->List();
  }
  StoreStats stats() const ABSL_LOCKS_EXCLUDED(state_.mutex);

 private:
  StoreState state_;
  ArenaLeases leases_;
  Reservations reservations_{&state_};
  ContextSegments context_segments_{&state_};
  SegmentListing listing_{&state_};
  std::unique_ptr<DurableTier> tier_;   // constant once set; its callbacks lock state_.mutex
  std::unique_ptr<TierBridge> bridge_;  // constant once set; null without a tier
  absl::Status missing_tier_;           // constant once set
};

}  // namespace retroinfer::kvstore
