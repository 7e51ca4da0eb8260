// Plans where the extents of a reservation lie, and which unreferenced segments are evicted for
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "kv_store_service/arena/extent_allocator.h"
#include "kv_store_service/directory/segment_directory.h"

namespace retroinfer::kvstore {

struct ReservationPlan {
  std::vector<PageRun> extents;       // in the order of the request
  std::vector<uint64_t> evicted_ids;  // segments that must be evicted first
};

// Threads: one at a time.
// Owns:    nothing; allocator, directory and names outlive the planner and do not change.
class ReservationPlanner {
 public:
  using NameSet = absl::flat_hash_set<common::SegmentName>;

  // `pinned`: names of segments that are evicted only if there is no room otherwise, as long as
  // they take at most half of the arena; may be null. `large_pages`: see AllocationPlan.
  ReservationPlanner(const ExtentAllocator& allocator, const SegmentDirectory& directory,
                     const NameSet* pinned, uint32_t large_pages);

  // Plans an extent of each of `counts` pages. Evicts no segment of `shared`; evicts pinned ones
  // only with `may_evict_pinned`, and then after all others.
  //
  // Returns: nothing if there is no room, see PlanAllocation().
  // Cost:    that of PlanAllocation(), and O(pinned names).
  std::optional<ReservationPlan> Plan(std::span<const uint32_t> counts,
                                      std::span<const ExtentRecord> shared,
                                      bool may_evict_pinned) const;

 private:
  // Ids of the pinned extents, those released first, up to half of the arena.
  absl::flat_hash_set<uint64_t> PinnedIds() const;

  const ExtentAllocator& allocator_;
  const SegmentDirectory& directory_;
  const NameSet* pinned_;
  const uint32_t large_pages_;
  const absl::flat_hash_set<uint64_t> pinned_ids_;
};

}  // namespace retroinfer::kvstore
