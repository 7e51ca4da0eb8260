// What contexts ask of the store: where their segments are, that they are written, kept or dropped.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock/steady_now.h"
#include "common/kv/kv_geometry.h"
#include "common/kv/named_segment.h"
#include "kv_store_service/store/store_state.h"
#include "kv_store_service/tier/context_pins.h"
#include "kv_store_service/tier/tier_bridge.h"

namespace retroinfer::kvstore {

// Threads: all methods on any thread.
// Owns:    nothing; `state` outlives the object.
class ContextSegments {
 public:
  using NameSet = ContextPins::NameSet;
  struct AttachedModel {
    KvGeometry geometry;
    std::string fingerprint;
  };

  explicit ContextSegments(StoreState* state) : state_(*state) {}

  // The model of the attached worker, or nothing.
  std::optional<AttachedModel> attached_model() const ABSL_LOCKS_EXCLUDED(state_.mutex);
  uint64_t arena_bytes() const ABSL_LOCKS_EXCLUDED(state_.mutex);

  // As ContextPins::Pin() and PinForSave(). Segments that are pinned for a save are written as soon
  // as they are committed, and not evicted from the disk.
  void PinNames(NameSet names) ABSL_LOCKS_EXCLUDED(state_.mutex) {
    absl::MutexLock lock(&state_.mutex);
    state_.pins.Pin(std::move(names));
  }
  absl::Status PinForSave(std::span<const SegmentName> names, absl::Time until)
      ABSL_LOCKS_EXCLUDED(state_.mutex) {
    absl::MutexLock lock(&state_.mutex);
    return state_.pins.PinForSave(names, until, common::SteadyNow());
  }
  // Whether a sequence, a write to the disk or a context that is being saved uses the segment of
  // that name.
  bool IsReferenced(const SegmentName& name) const ABSL_LOCKS_EXCLUDED(state_.mutex);

  // Returns the pages that each of the segments takes in the arena; 0 if it is not there.
  std::vector<uint64_t> PagesInArena(std::span<const SegmentName> names) const
      ABSL_LOCKS_EXCLUDED(state_.mutex);
  // Starts to write those of the segments that are in the arena and neither on the disk nor about
  // to be; `failed` is called, on any thread, for each that cannot be written.
  //
  // REQUIRES: there is a disk tier.
  void PersistNow(std::span<const SegmentName> names, const TierBridge::PersistFailed& failed)
      ABSL_LOCKS_EXCLUDED(state_.mutex);
  // Evicts those of the segments that are in the arena and without references.
  void DropFromArena(std::span<const SegmentName> names) ABSL_LOCKS_EXCLUDED(state_.mutex);

 private:
  StoreState& state_;
};

}  // namespace retroinfer::kvstore
