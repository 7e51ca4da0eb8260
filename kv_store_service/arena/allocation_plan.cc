#include "kv_store_service/arena/allocation_plan.h"

namespace retroinfer::kvstore {

std::optional<AllocationPlan> PlanAllocation(const ExtentAllocator& allocator,
                                             std::span<const uint32_t> counts,
                                             std::span<const PageRun> evictable) {
  uint64_t needed = 0;
  for (const uint32_t count : counts) needed += count;
  uint64_t obtainable = allocator.free_pages();
  for (const PageRun& run : evictable) obtainable += run.count;
  if (needed > obtainable) return std::nullopt;
  AllocationPlan plan;
  plan.allocator = allocator;
  for (const uint32_t count : counts) {
    std::optional<PageRun> run = plan.allocator.Allocate(count);
    while (!run.has_value() && plan.num_evicted < evictable.size()) {
      plan.allocator.Free(evictable[plan.num_evicted++]);
      run = plan.allocator.Allocate(count);
    }
    if (!run.has_value()) return std::nullopt;
    plan.extents.push_back(*run);
  }
  return plan;
}

}  // namespace retroinfer::kvstore
