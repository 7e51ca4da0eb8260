#include "kv_store_service/directory/room_search.h"

#include <algorithm>
#include <utility>

#include "kv_store_service/arena/allocation_plan.h"

namespace retroinfer::kvstore {
namespace {

// More than any order of release: kept segments are dearer than all others.
constexpr uint64_t kRankOfKept = uint64_t{1} << 62;

}  // namespace

RoomSearch::RoomSearch(const ExtentAllocator& allocator, const SegmentDirectory& directory,
                       const NameSet* kept, uint32_t large_pages)
    : allocator_(allocator),
      directory_(directory),
      kept_(kept),
      large_pages_(large_pages),
      kept_ids_(KeptIds()) {}

absl::flat_hash_set<uint64_t> RoomSearch::KeptIds() const {
  absl::flat_hash_set<uint64_t> ids;
  if (kept_ == nullptr) return ids;
  std::vector<const ExtentRecord*> segments;
  for (const common::SegmentName& name : *kept_) {
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

std::optional<Room> RoomSearch::Find(std::span<const uint32_t> counts,
                                     std::span<const ExtentRecord> shared,
                                     bool may_take_kept) const {
  absl::flat_hash_set<uint64_t> shared_ids;
  for (const ExtentRecord& extent : shared) shared_ids.insert(extent.id);
  std::vector<EvictableRun> evictable;
  std::vector<uint64_t> ids;
  evictable.reserve(directory_.UnreferencedByPage().size());
  ids.reserve(evictable.capacity());
  for (const auto& [first, segment] : directory_.UnreferencedByPage()) {
    if (shared_ids.contains(segment.extent_id)) continue;
    const bool is_kept = kept_ids_.contains(segment.extent_id);
    if (is_kept && !may_take_kept) continue;
    evictable.push_back({{first, segment.num_pages}, segment.since + (is_kept ? kRankOfKept : 0)});
    ids.push_back(segment.extent_id);
  }
  auto plan = PlanAllocation(allocator_, counts, large_pages_, evictable);
  if (!plan.has_value()) return std::nullopt;
  Room room{.extents = std::move(plan->extents), .evicted_ids = {}};
  for (const size_t index : plan->evicted) room.evicted_ids.push_back(ids[index]);
  return room;
}

}  // namespace retroinfer::kvstore
