// What contexts pin, by name: segments that are not evicted from the arena, and segments that a
// save waits for.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/hash/segment_name.h"

namespace retroinfer::kvstore {

// Threads: one at a time.
// Owns:    names; the pins do not know whether there are such segments.
class ContextPins {
 public:
  using NameSet = absl::flat_hash_set<common::SegmentName>;

  // Replaces the names that are not evicted from the arena.
  void Pin(NameSet names) { pinned_ = std::move(names); }
  // Refers to the names of now, also after a later Pin().
  const NameSet& pinned() const { return pinned_; }

  // Pins the names for a save that may last until `until`; a time that is past, seen from `now`,
  // ends that. A name that is pinned for longer already stays so.
  //
  // Returns: RESOURCE_EXHAUSTED if saves wait for too many names already; nothing has changed then.
  absl::Status PinForSave(std::span<const common::SegmentName> names, absl::Time until,
                          absl::Time now);
  bool IsPinnedForSave(const common::SegmentName& name, absl::Time now) const {
    const auto found = saves_.find(name);
    return found != saves_.end() && now < found->second;
  }

 private:
  NameSet pinned_;
  absl::flat_hash_map<common::SegmentName, absl::Time> saves_;  // until when
};

}  // namespace retroinfer::kvstore
