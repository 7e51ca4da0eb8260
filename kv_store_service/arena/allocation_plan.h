// Finds room for several extents at once, at the cost of runs that may be given up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv_store_service/arena/extent_allocator.h"

namespace retroinfer::kvstore {

// A run that may be given up.
struct EvictableRun {
  PageRun pages;
  uint64_t rank = 0;  // 1 to 2^63, unique: a run is dearer than all of a lower rank together
};

struct AllocationPlan {
  std::vector<PageRun> extents;      // in the order of the request
  std::vector<size_t> evicted = {};  // which of the evictable runs must be given up, ascending
  uint64_t visits = 0;               // runs that were looked at; what the plan has cost
};

// Finds room for an extent of each of `counts`, which the caller then takes from the allocator
// after it has freed the evicted runs. Extents of `large_pages` are large, shorter ones small: see
// GridPlacement.
//
// Gives up nothing if there is room without. Otherwise the extents are placed on the grid, where
// the ranks are lowest. If the grid has no room for them they are placed anywhere: then the dearest
// run that is given up is the cheapest one possible, and of the cheaper ones the dearest are kept
// that need not go, as long as the search is short.
//
// Whatever fits without any of the evictable runs is found, as far as ExtentPacking::Fits() finds
// it with `exhaustive`: always, if there is one free run then.
//
// REQUIRES: all counts > 0; large_pages > 0; the evictable runs are allocated, do not overlap and
//           are in ascending order of their pages.
// Returns:  nothing if not all fit even without any of the evictable runs.
// Cost:     visits <= 2^19 + 32 * (free runs + evictable runs + extents) + 8 * the slots of all
//           small lengths, each a comparison of numbers that lie next to each other. With 100,000
//           evictable runs about 4 ms on the grid.
std::optional<AllocationPlan> PlanAllocation(const ExtentAllocator& allocator,
                                             std::span<const uint32_t> counts, uint32_t large_pages,
                                             std::span<const EvictableRun> evictable);

}  // namespace retroinfer::kvstore
