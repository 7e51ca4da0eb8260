// The segments that contexts keep, by name: pinned in the arena, or held until they are saved.
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
// Owns:    names; whether there are such segments is not known here.
class KeptNames {
 public:
  using NameSet = absl::flat_hash_set<common::SegmentName>;

  // Replaces the names that are not evicted from the arena.
  void Pin(NameSet names) { pinned_ = std::move(names); }
  // Refers to the names of now, also after a later Pin().
  const NameSet& pinned() const { return pinned_; }

  // Holds the names until `until`; one that is in the past, seen from `now`, ends that. A name that
  // is held longer already stays so.
  //
  // Returns: RESOURCE_EXHAUSTED if too many are held already; nothing has changed then.
  absl::Status Hold(std::span<const common::SegmentName> names, absl::Time until, absl::Time now);
  bool IsHeld(const common::SegmentName& name, absl::Time now) const {
    const auto held = held_.find(name);
    return held != held_.end() && now < held->second;
  }

 private:
  NameSet pinned_;
  absl::flat_hash_map<common::SegmentName, absl::Time> held_;  // until then
};

}  // namespace retroinfer::kvstore
