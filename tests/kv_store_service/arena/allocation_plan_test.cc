#include "kv_store_service/arena/allocation_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "common/kv/segment_layout.h"
#include "tests/kv_store_service/random_seed.h"

namespace retroinfer::kvstore {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Whether the counts can be shared out over runs of these lengths: tries every way.
bool CanShareOut(std::vector<uint32_t> counts, std::vector<uint32_t> lengths) {
  if (counts.empty()) return true;
  const uint32_t count = counts.back();
  counts.pop_back();
  for (uint32_t& length : lengths) {
    if (length < count) continue;
    length -= count;
    if (CanShareOut(counts, lengths)) return true;
    length += count;
  }
  return false;
}

// Takes what the plan says; fails where that is not to be had. Returns the pages given up.
uint64_t Apply(const AllocationPlan& plan, std::span<const uint32_t> counts,
               std::span<const EvictableRun> evictable, ExtentAllocator& allocator) {
  uint64_t pages = 0;
  for (const size_t index : plan.evicted) {
    allocator.Free(evictable[index].pages);
    pages += evictable[index].pages.count;
  }
  EXPECT_EQ(plan.extents.size(), counts.size());
  for (size_t i = 0; i < plan.extents.size(); ++i) {
    EXPECT_EQ(plan.extents[i].count, counts[i]);
    EXPECT_TRUE(allocator.Take(plan.extents[i]).ok());
  }
  return pages;
}

class AllocationPlanTest : public testing::Test {
 protected:
  // 100 pages: runs of 15 at 0, 15, ... 75, whose rank is 10 + their number; 10 are free at the
  // end.
  AllocationPlanTest() : allocator_(100) {
    for (uint32_t i = 0; i < 6; ++i) {
      runs_.push_back({*allocator_.Allocate(15), 10 + i});
    }
  }
  std::optional<AllocationPlan> Plan(std::vector<uint32_t> counts, std::vector<int> evictable,
                                     uint32_t large = 1000) {
    some_.clear();
    for (const int index : evictable) some_.push_back(runs_[static_cast<size_t>(index)]);
    auto plan = PlanAllocation(allocator_, counts, large, some_);
    if (plan.has_value()) {
      ExtentAllocator after = allocator_;
      Apply(*plan, counts, some_, after);
    }
    return plan;
  }
  ExtentAllocator allocator_;
  std::vector<EvictableRun> runs_;
  std::vector<EvictableRun> some_;
};

TEST_F(AllocationPlanTest, EvictsNothingWhileThereIsRoom) {
  const auto plan = Plan({4, 6}, {0, 1, 2, 3, 4, 5});
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(plan->evicted, IsEmpty());
  EXPECT_EQ(allocator_.free_pages(), 10u);
}

TEST_F(AllocationPlanTest, EvictsTheCheapestThatWillDo) {
  runs_[4].rank = 1;
  // Longer than a cell: not for the grid.
  const auto plan = Plan({12, 10}, {0, 1, 4}, 11);
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(plan->evicted, ElementsAre(2));
}

TEST_F(AllocationPlanTest, KeepsWhatIsOfNoUse) {
  // Only the last one makes a run of 25; the cheaper ones stay.
  const auto plan = Plan({25}, {0, 2, 5});
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(plan->evicted, ElementsAre(2));
  EXPECT_THAT(plan->extents, ElementsAre(PageRun{75, 25}));
}

TEST_F(AllocationPlanTest, AnyOrderOfReleaseIsGrantedIfAllMayGo) {
  // Placed one by one, 40 would go where 55 must.
  const auto plan = Plan({40, 55}, {0, 1, 2, 3, 4, 5});
  ASSERT_TRUE(plan.has_value());
}

TEST_F(AllocationPlanTest, FindsNothingIfEvenAllOfThemDoNotDo) {
  EXPECT_FALSE(Plan({26}, {4}).has_value());
  EXPECT_FALSE(Plan({31}, {0, 2, 4}).has_value());
  EXPECT_FALSE(Plan({11}, {}).has_value());
  EXPECT_EQ(allocator_.free_pages(), 10u);
}

TEST_F(AllocationPlanTest, NothingNeedsNothing) {
  const auto plan = Plan({}, {0, 1});
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(plan->evicted, IsEmpty());
}

// Best fit with the longest first fails for these, another way does not.
TEST_F(AllocationPlanTest, TriesOtherWaysToShareOut) {
  ExtentAllocator allocator(21);
  ASSERT_TRUE(allocator.Take({10, 1}).ok());  // runs of 10 and 10
  const std::vector<uint32_t> counts = {4, 4, 3, 3, 3, 3};
  const auto plan = PlanAllocation(allocator, counts, 100, {});
  ASSERT_TRUE(plan.has_value());
  Apply(*plan, counts, {}, allocator);
  EXPECT_EQ(allocator.free_pages(), 0u);
}

// Random arenas with runs in use, evictable and free ones; against trying every way.
TEST(AllocationPlanPropertyTest, GrantsWhatFitsBesideWhatIsInUseAndEvictsNoMore) {
  std::mt19937_64 random(TestSeed());
  int granted = 0, refused = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto num_pages = static_cast<uint32_t>(40 + random() % 80);
    ExtentAllocator allocator(num_pages);
    std::vector<EvictableRun> evictable;
    std::vector<uint64_t> ranks(num_pages);
    for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = i + 1;
    std::shuffle(ranks.begin(), ranks.end(), random);
    ExtentAllocator without = allocator;  // any of the evictable ones
    for (uint32_t page = 0; page < num_pages;) {
      const auto count = std::min<uint32_t>(1 + random() % 20, num_pages - page);
      const uint64_t kind = random() % 8;
      if (kind > 2) {
        ASSERT_TRUE(allocator.Take({page, count}).ok());
        evictable.push_back({{page, count}, ranks[page]});
      } else if (kind == 0) {
        ASSERT_TRUE(allocator.Take({page, count}).ok());
        ASSERT_TRUE(without.Take({page, count}).ok());
      }
      page += count;
    }
    std::vector<uint32_t> counts;
    const uint32_t lengths[] = {16, 2, 5};
    for (uint64_t i = 0, n = 1 + random() % 7; i < n; ++i) {
      counts.push_back(lengths[random() % (1 + random() % 3)]);
    }
    std::vector<uint32_t> free;
    for (const PageRun& run : without.FreeRuns()) free.push_back(run.count);
    const bool fits = CanShareOut(counts, free);
    const auto plan = PlanAllocation(allocator, counts, 16, evictable);
    ASSERT_EQ(plan.has_value(), fits) << round;
    (fits ? granted : refused)++;
    if (!fits) continue;
    // What is given up is all in the way of an extent.
    for (const size_t index : plan->evicted) {
      const PageRun& pages = evictable[index].pages;
      EXPECT_TRUE(std::any_of(plan->extents.begin(), plan->extents.end(), [&](const PageRun& at) {
        return at.first < pages.end() && pages.first < at.end();
      }));
    }
    ExtentAllocator after = allocator;
    Apply(*plan, counts, evictable, after);
  }
  EXPECT_GT(granted, 500);
  EXPECT_GT(refused, 500);
}

// 100,000 small runs, few of them next to each other in the order of their release.
TEST(AllocationPlanCostTest, OneHundredThousandRunsAreLookedAtAFewTimes) {
  constexpr uint32_t kRuns = 100'000;
  constexpr uint32_t kSmall = 100;
  std::mt19937_64 random(TestSeed());
  ExtentAllocator allocator(kRuns * kSmall);
  std::vector<EvictableRun> evictable;
  std::vector<uint64_t> ranks(kRuns);
  for (uint32_t i = 0; i < kRuns; ++i) ranks[i] = i + 1;
  std::shuffle(ranks.begin(), ranks.end(), random);
  for (uint32_t i = 0; i < kRuns; ++i) {
    evictable.push_back({{i * kSmall, 92}, ranks[i]});
    ASSERT_TRUE(allocator.Take(evictable.back().pages).ok());
  }
  for (const bool on_grid : {true, false}) {
    std::vector<uint32_t> counts(15, 128 * kSmall);
    for (int i = 0; i < 40; ++i) counts.push_back(kSmall);
    // Lengths above a cell's are not for the grid.
    if (!on_grid) counts.push_back(200 * kSmall);
    const auto plan = PlanAllocation(allocator, counts, 128 * kSmall, evictable);
    ASSERT_TRUE(plan.has_value());
    EXPECT_LE(plan->visits, (uint64_t{1} << 19) + 32 * (2 * kRuns + counts.size()) + 8 * kRuns);
    EXPECT_TRUE(!on_grid || plan->visits <= 10u * kRuns) << plan->visits;
    ExtentAllocator after = allocator;
    const uint64_t needed = (128 * 15 + 40 + (on_grid ? 0 : 200)) * kSmall;
    EXPECT_LE(Apply(*plan, counts, evictable, after), needed + 2 * kSmall * counts.size());
  }
}

// How many contexts of so many segments an arena holds that is asked for one after the other, each
// computed before the next one comes: what its segments do not use is given back.
struct ContextsHeld {
  int contexts = 0;
  uint32_t whole_cells_left = 0;  // that a large extent could have
};
ContextsHeld HoldContexts(const KvGeometry& geometry, uint64_t arena_bytes, size_t num_large,
                          size_t num_small) {
  const SegmentLayout large(geometry, kPrefillSegmentTokens);
  const SegmentLayout small(geometry, kDecodeSegmentTokens);
  // A cluster leaves half of a page's tokens less one on average, of which the layout has all.
  const auto used = [&](uint32_t pages) {
    const SegmentLayout& layout = pages == large.max_pages ? large : small;
    const uint32_t per_page = geometry.tokens_per_page();
    if (geometry.format.packs_clusters) return pages;
    const uint64_t clusters =
        uint64_t{geometry.num_layers} * geometry.num_kv_heads * layout.num_clusters;
    return static_cast<uint32_t>(pages - clusters * (per_page - 1) / (2 * per_page));
  };
  ExtentAllocator allocator(static_cast<uint32_t>(arena_bytes / geometry.page_bytes()));
  std::vector<uint32_t> counts(num_large, large.max_pages);
  counts.insert(counts.end(), num_small, small.max_pages);
  ContextsHeld held;
  while (const auto plan = PlanAllocation(allocator, counts, large.max_pages, {})) {
    for (const PageRun& extent : plan->extents) EXPECT_TRUE(allocator.Take(extent).ok());
    for (const PageRun& extent : plan->extents) {
      const uint32_t pages = used(extent.count);
      if (pages == extent.count) continue;
      allocator.Free({static_cast<PageId>(extent.first + pages), extent.count - pages});
    }
    ++held.contexts;
  }
  for (const PageRun& run : allocator.FreeRuns()) {
    held.whole_cells_left += run.count / large.max_pages;
  }
  return held;
}

// A large segment in 8 bits leaves more than a small extent takes, one in 16 bits does not.
TEST(AllocationPlanOfContextsTest, SmallExtentsLieBehindLargeSegmentsWhereTheyFit) {
  constexpr uint64_t kArena = uint64_t{115} << 30;
  const KvGeometry eight_bits{32, 8, 128, kInt8Kv}, sixteen_bits{32, 8, 128, kBf16Kv};
  // 122,880 tokens and an answer of up to a segment.
  const ContextsHeld long_ones = HoldContexts(eight_bits, kArena, 14, 8);
  EXPECT_EQ(long_ones.contexts, 10);
  EXPECT_EQ(long_ones.whole_cells_left, 11u);
  EXPECT_EQ(HoldContexts(eight_bits, kArena, 13, 8).contexts, 11);
  EXPECT_EQ(HoldContexts(sixteen_bits, kArena, 14, 8).contexts, 6);
  EXPECT_EQ(HoldContexts({32, 8, 128, kBf16Int8Kv}, kArena, 14, 8).contexts, 6);
}

// Packed clusters need what a segment has of tokens, whatever they are: nothing is left behind a
// segment, and no room is reserved that is not used.
TEST(AllocationPlanOfContextsTest, MoreContextsFitWhereClustersArePacked) {
  constexpr uint64_t kArena = uint64_t{115} << 30;
  const KvGeometry eight_bits{32, 8, 128, kInt8PackedKv}, sixteen_bits{32, 8, 128, kBf16PackedKv};
  EXPECT_EQ(HoldContexts(eight_bits, kArena, 14, 8).contexts, 14);
  EXPECT_EQ(HoldContexts(eight_bits, kArena, 14, 9).contexts, 14);  // an answer of two segments
  EXPECT_EQ(HoldContexts(eight_bits, uint64_t{98} << 30, 14, 9).contexts, 12);
  EXPECT_EQ(HoldContexts(sixteen_bits, kArena, 14, 8).contexts, 7);
}

}  // namespace
}  // namespace retroinfer::kvstore
