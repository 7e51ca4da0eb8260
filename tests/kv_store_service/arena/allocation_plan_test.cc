#include "kv_store_service/arena/allocation_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer::kvstore {
namespace {

using testing::ElementsAre;

class AllocationPlanTest : public testing::Test {
 protected:
  // 100 pages: six runs of 15 in use, 10 free.
  AllocationPlanTest() : allocator_(100) {
    for (int i = 0; i < 6; ++i) runs_.push_back(*allocator_.Allocate(15));
  }
  std::optional<AllocationPlan> Plan(std::vector<uint32_t> counts, std::vector<PageRun> evictable) {
    return PlanAllocation(allocator_, counts, evictable);
  }
  ExtentAllocator allocator_;
  std::vector<PageRun> runs_;
};

TEST_F(AllocationPlanTest, EvictsNothingWhileThereIsRoom) {
  const auto plan = Plan({4, 6}, runs_);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->num_evicted, 0u);
  EXPECT_THAT(plan->extents, ElementsAre(PageRun{90, 4}, PageRun{94, 6}));
  EXPECT_EQ(plan->allocator.free_pages(), 0u);
  EXPECT_EQ(allocator_.free_pages(), 10u);
}

TEST_F(AllocationPlanTest, EvictsInOrderAndNoMoreThanItNeeds) {
  const auto plan = Plan({12, 10}, {runs_[3], runs_[1], runs_[0]});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->num_evicted, 1u);
  EXPECT_THAT(plan->extents, ElementsAre(PageRun{45, 12}, PageRun{90, 10}));
  EXPECT_EQ(plan->allocator.free_pages(), 3u);
}

TEST_F(AllocationPlanTest, GoesOnUntilARunIsLongEnough) {
  const auto plan = Plan({25}, {runs_[0], runs_[2], runs_[5], runs_[4]});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->num_evicted, 3u);
  EXPECT_THAT(plan->extents, ElementsAre(PageRun{75, 25}));
}

TEST_F(AllocationPlanTest, FindsNothingIfEvenAllOfThemDoNotDo) {
  EXPECT_FALSE(Plan({26}, {runs_[4]}).has_value());
  EXPECT_FALSE(Plan({31}, {runs_[0], runs_[2], runs_[4]}).has_value());
  EXPECT_FALSE(Plan({11}, {}).has_value());
  EXPECT_EQ(allocator_.free_pages(), 10u);
}

TEST_F(AllocationPlanTest, NothingNeedsNothing) {
  const auto plan = Plan({}, runs_);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->num_evicted, 0u);
}

}  // namespace
}  // namespace retroinfer::kvstore
