// Finds room for several extents at once, at the cost of runs that may be given up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv_store_service/arena/extent_allocator.h"

namespace retroinfer::kvstore {

struct AllocationPlan {
  std::vector<PageRun> extents;  // in the order of the request
  size_t num_evicted = 0;        // leading evictable runs that must be given up
  ExtentAllocator allocator;     // as it is afterwards
};

// Allocates one run for each element of `counts`, in order. Whenever one does not fit, frees the
// next run of `evictable` and tries again.
//
// REQUIRES: all counts > 0; the evictable runs are allocated and do not overlap.
// Returns:  nothing if not all fit even without any of the evictable runs.
// Cost:     O(free runs + (counts + evicted runs) * log free runs).
std::optional<AllocationPlan> PlanAllocation(const ExtentAllocator& allocator,
                                             std::span<const uint32_t> counts,
                                             std::span<const PageRun> evictable);

}  // namespace retroinfer::kvstore
