// Finds room for a reservation at the cost of segments that nobody uses.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "kv_store_service/arena/extent_allocator.h"
#include "kv_store_service/directory/segment_directory.h"

namespace retroinfer::kvstore {

// Where the extents of a reservation can be.
struct Room {
  std::vector<PageRun> extents;       // in the order of the request
  std::vector<uint64_t> evicted_ids;  // segments that must go for them
};

// Threads: one at a time.
// Owns:    nothing; all that it refers to outlives it and does not change.
class RoomSearch {
 public:
  using NameSet = absl::flat_hash_set<common::SegmentName>;

  // `kept`: names of segments that are given up only if there is no room otherwise, as long as they
  // take at most half of the arena; may be null. `large_pages`: see AllocationPlan.
  RoomSearch(const ExtentAllocator& allocator, const SegmentDirectory& directory,
             const NameSet* kept, uint32_t large_pages);

  // Finds room for an extent of each of `counts` without the segments of `shared`; without kept
  // ones, too, unless `may_take_kept`, and then these go last.
  //
  // Returns: nothing if there is none, see PlanAllocation().
  // Cost:    that of PlanAllocation(), and O(kept names).
  std::optional<Room> Find(std::span<const uint32_t> counts, std::span<const ExtentRecord> shared,
                           bool may_take_kept) const;

 private:
  // The extents that are to be kept before all others: the ones released first.
  absl::flat_hash_set<uint64_t> KeptIds() const;

  const ExtentAllocator& allocator_;
  const SegmentDirectory& directory_;
  const NameSet* kept_;
  const uint32_t large_pages_;
  const absl::flat_hash_set<uint64_t> kept_ids_;
};

}  // namespace retroinfer::kvstore
