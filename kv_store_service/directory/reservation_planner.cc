#include "kv_store_service/directory/reservation_planner.h"

#include <algorithm>
#include <utility>

#include "kv_store_service/arena/allocation_plan.h"

namespace retroinfer::kvstore {
namespace {

// More than any order of release: pinned segments are evicted after all others.
constexpr uint64_t kRankOfPinned = uint64_t{1} << 62;

}  // namespace

ReservationPlanner::ReservationPlanner(const ExtentAllocator& allocator,
                                       const SegmentDirectory& directory, const NameSet* pinned,
                                       uint32_t large_pages)
    : allocator_(allocator),
      directory_(directory),
      pinned_(pinned),
      large_pages_(large_pages),
      pinned_ids_(PinnedIds()) {}

absl::flat_hash_set<uint64_t> ReservationPlanner::PinnedIds() const {
  absl::flat_hash_set<uint64_t> ids;
  if (pinned_ == nullptr) return ids;
  std::vector<const ExtentRecord*> segments;
  for (const common::SegmentName& name : *pinned_) {
    const ExtentRecord* segment = directory_.FindNamed(name);
    if (segment != nullptr && segment->references == 0) segments.push_back(segment);
  }
  std::sort(segments.begin(), segments.end(), [](const auto* a, const auto* b) {
    return a->unreferenced_since < b->unreferenced_since;
  });
  uint64_t pages = 0;
  for (const ExtentRecord* segment : segments) {
    pages += segment->pages.count;
    if (pages <= allocator_.num_pages() / 2) ids.insert(segment->id);
  }
  return ids;
}

std::optional<ReservationPlan> ReservationPlanner::Plan(std::span<const uint32_t> counts,
                                                        std::span<const ExtentRecord> shared,
                                                        bool may_evict_pinned) const {
  absl::flat_hash_set<uint64_t> shared_ids;
  for (const ExtentRecord& extent : shared) shared_ids.insert(extent.id);
  std::vector<EvictableRun> evictable;
  std::vector<uint64_t> ids;
  evictable.reserve(directory_.UnreferencedByPage().size());
  ids.reserve(evictable.capacity());
  for (const auto& [first, segment] : directory_.UnreferencedByPage()) {
    if (shared_ids.contains(segment.extent_id)) continue;
    const bool is_pinned = pinned_ids_.contains(segment.extent_id);
    if (is_pinned && !may_evict_pinned) continue;
    evictable.push_back(
        {{first, segment.num_pages}, segment.since + (is_pinned ? kRankOfPinned : 0)});
    ids.push_back(segment.extent_id);
  }
  auto allocation = PlanAllocation(allocator_, counts, large_pages_, evictable);
  if (!allocation.has_value()) return std::nullopt;
  ReservationPlan plan{.extents = std::move(allocation->extents), .evicted_ids = {}};
  for (const size_t index : allocation->evicted) plan.evicted_ids.push_back(ids[index]);
  return plan;
}

}  // namespace retroinfer::kvstore
