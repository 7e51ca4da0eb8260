// Replays reservations of documents in an arena without memory, for tests and benchmarks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/kv/kv_geometry.h"
#include "common/kv/segment_layout.h"
#include "common/log/check.h"
#include "kv_store_service/arena/allocation_plan.h"

namespace retroinfer::kvstore {

// Finds room for extents: which evictable runs go, and where the extents are. The runs are given in
// the order of their release.
using Planner = std::function<std::optional<AllocationPlan>(
    const ExtentAllocator&, std::span<const uint32_t>, uint32_t large_pages,
    std::span<const EvictableRun>)>;

// What PlanAllocation() replaced: extents are placed in order, and while one does not fit the next
// run goes, the one released first first, until none is left.
inline std::optional<AllocationPlan> PlanOneByOne(const ExtentAllocator& allocator,
                                                  std::span<const uint32_t> counts, uint32_t,
                                                  std::span<const EvictableRun> evictable) {
  std::vector<size_t> order(evictable.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return evictable[a].rank < evictable[b].rank; });
  AllocationPlan plan;
  ExtentAllocator after = allocator;
  for (const uint32_t count : counts) {
    std::optional<PageRun> run = after.Allocate(count);
    while (!run.has_value() && plan.evicted.size() < order.size()) {
      const size_t next = order[plan.evicted.size()];
      after.Free(evictable[next].pages);
      plan.evicted.push_back(next);
      run = after.Allocate(count);
    }
    if (!run.has_value()) return std::nullopt;
    plan.extents.push_back(*run);
  }
  return plan;
}

struct ReplayedDocument {
  uint64_t text = 0;          // equal ones are the same document
  int64_t prompt_tokens = 0;  // whole segments of it are named
  int64_t more_tokens = 0;    // behind it, in unnamed segments
};

// Segments of documents: running ones are in use, others stay until their room is needed.
//
// Threads: one at a time.
class PlacementReplay {
 public:
  struct Totals {
    uint64_t asked = 0;
    uint64_t refused = 0;
    uint64_t refused_that_fit = 0;  // into the arena less what was in use
    uint64_t tokens = 0;            // of prompts
    uint64_t hit_tokens = 0;        // of those, in segments that were there
    uint64_t evicted_pages = 0;
    uint64_t visits_max = 0;  // of one plan
  };

  // `gives_up_shared`: where a document has no room, fewer of its segments that are there are used.
  PlacementReplay(const KvGeometry& geometry, uint64_t arena_bytes, Planner planner,
                  bool gives_up_shared)
      : large_(SegmentLayout(geometry, kPrefillSegmentTokens).max_pages),
        small_(SegmentLayout(geometry, kDecodeSegmentTokens).max_pages),
        allocator_(static_cast<uint32_t>(arena_bytes / geometry.page_bytes())),
        planner_(std::move(planner)),
        gives_up_shared_(gives_up_shared) {}

  // Tokens of the largest context whose extents the arena could hold.
  int64_t CapacityTokens() const {
    return int64_t{allocator_.num_pages() / large_} * kPrefillSegmentTokens +
           int64_t{allocator_.num_pages() % large_ / small_} * kDecodeSegmentTokens;
  }
  // Pages that extents for the document take while it is computed.
  uint64_t PagesOf(const ReplayedDocument& document) const {
    uint64_t pages = 0;
    for (const auto& [tokens, is_named] : SegmentsOf(document)) pages += PagesOf(tokens);
    return pages;
  }
  // Pages that running documents hold.
  uint64_t pages_in_use() const {
    uint64_t pages = allocator_.num_pages() - allocator_.free_pages();
    for (const auto& [first, segment] : segments_) {
      pages -= segment.references == 0 ? segment.pages.count : 0;
    }
    return pages;
  }
  uint32_t num_pages() const { return allocator_.num_pages(); }
  const Totals& totals() const { return totals_; }

  // Reserves and computes the document; it runs until Release(). Returns whether there was room.
  bool Run(uint64_t id, const ReplayedDocument& document);
  void Release(uint64_t id);

 private:
  struct Segment {
    PageRun pages;
    std::pair<uint64_t, size_t> name;  // text and index; unnamed ones have no references
    uint32_t references = 0;
    uint64_t released = 0;
  };
  struct Running {
    std::vector<PageId> named;  // keys of segments_
    std::vector<PageRun> unnamed;
  };

  uint32_t PagesOf(uint32_t tokens) const {
    return tokens == kPrefillSegmentTokens ? large_ : small_;
  }
  static std::vector<std::pair<uint32_t, bool>> SegmentsOf(const ReplayedDocument& document) {
    std::vector<std::pair<uint32_t, bool>> segments;
    int64_t left = document.prompt_tokens;
    for (; left >= kPrefillSegmentTokens; left -= kPrefillSegmentTokens) {
      segments.emplace_back(kPrefillSegmentTokens, true);
    }
    for (; left >= kDecodeSegmentTokens; left -= kDecodeSegmentTokens) {
      segments.emplace_back(kDecodeSegmentTokens, true);
    }
    left += document.more_tokens;
    for (; left >= kDecodeSegmentTokens; left -= kDecodeSegmentTokens) {
      segments.emplace_back(kDecodeSegmentTokens, false);
    }
    return segments;
  }
  std::optional<AllocationPlan> Plan(std::span<const uint32_t> counts,
                                     std::span<const PageId> shared);

  const uint32_t large_;
  const uint32_t small_;
  ExtentAllocator allocator_;
  const Planner planner_;
  const bool gives_up_shared_;
  std::map<PageId, Segment> segments_;  // named ones, by their first page
  std::map<std::pair<uint64_t, size_t>, PageId> by_name_;
  std::map<uint64_t, Running> running_;
  uint64_t last_release_ = 0;
  Totals totals_;
};

inline std::optional<AllocationPlan> PlacementReplay::Plan(std::span<const uint32_t> counts,
                                                           std::span<const PageId> shared) {
  std::vector<EvictableRun> evictable;
  for (const auto& [first, segment] : segments_) {
    if (segment.references > 0 || std::find(shared.begin(), shared.end(), first) != shared.end()) {
      continue;
    }
    evictable.push_back({segment.pages, segment.released});
  }
  auto plan = planner_(allocator_, counts, large_, evictable);
  if (!plan.has_value()) return plan;
  totals_.visits_max = std::max(totals_.visits_max, plan->visits);
  for (const size_t index : plan->evicted) {
    const PageRun pages = evictable[index].pages;
    totals_.evicted_pages += pages.count;
    by_name_.erase(segments_.at(pages.first).name);
    segments_.erase(pages.first);
    allocator_.Free(pages);
  }
  for (const PageRun& extent : plan->extents) RI_CHECK(allocator_.Take(extent).ok());
  return plan;
}

inline bool PlacementReplay::Run(uint64_t id, const ReplayedDocument& document) {
  const auto wanted = SegmentsOf(document);
  ++totals_.asked;
  totals_.tokens += static_cast<uint64_t>(document.prompt_tokens);
  Running running;
  size_t cached = 0;
  uint64_t cached_tokens = 0;
  for (; cached < wanted.size() && wanted[cached].second; ++cached) {
    const auto found = by_name_.find({document.text, cached});
    if (found == by_name_.end()) break;
    running.named.push_back(found->second);
    cached_tokens += wanted[cached].first;
  }
  const auto counts_from = [&](size_t begin) {
    std::vector<uint32_t> counts;
    for (size_t i = begin; i < wanted.size(); ++i) counts.push_back(PagesOf(wanted[i].first));
    return counts;
  };
  const uint64_t in_use = pages_in_use();
  auto plan = Plan(counts_from(cached), running.named);
  while (!plan.has_value() && gives_up_shared_ && cached > 0) {
    cached_tokens -= wanted[--cached].first;
    running.named.pop_back();
    plan = Plan(counts_from(cached), running.named);
  }
  if (!plan.has_value()) {
    ++totals_.refused;
    totals_.refused_that_fit += PagesOf(document) + in_use <= allocator_.num_pages();
    return false;
  }
  totals_.hit_tokens += cached_tokens;
  for (const PageId first : running.named) ++segments_.at(first).references;
  for (size_t i = cached; i < wanted.size(); ++i) {
    const PageRun extent = plan->extents[i - cached];
    // A segment has 88 to 96 % of the pages that it could need at most.
    const uint64_t mixed = (document.text * 1'000'003 + i) * 0x9e3779b97f4a7c15 >> 40;
    const auto used = static_cast<uint32_t>(uint64_t{extent.count} * (880 + mixed % 80) / 1'000);
    const PageRun pages{extent.first, used};
    allocator_.Free({extent.first + used, extent.count - used});
    if (!wanted[i].second || by_name_.contains({document.text, i})) {
      running.unnamed.push_back(pages);
      continue;
    }
    segments_[pages.first] = {pages, {document.text, i}, 1, 0};
    by_name_[{document.text, i}] = pages.first;
    running.named.push_back(pages.first);
  }
  running_[id] = std::move(running);
  return true;
}

inline void PlacementReplay::Release(uint64_t id) {
  const Running running = std::move(running_.at(id));
  running_.erase(id);
  for (const PageRun& pages : running.unnamed) allocator_.Free(pages);
  for (auto first = running.named.rbegin(); first != running.named.rend(); ++first) {
    Segment& segment = segments_.at(*first);
    if (--segment.references == 0) segment.released = ++last_release_;
  }
}

}  // namespace retroinfer::kvstore
