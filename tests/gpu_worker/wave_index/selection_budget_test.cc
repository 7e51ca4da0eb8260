#include "gpu_worker/wave_index/selection_budget.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

TEST(SelectionBudgetTest, RatiosAreRoundedUp) {
  const SelectionBudget budget = BudgetOf({}, 8192);
  EXPECT_EQ(budget.num_clusters, 8192);
  EXPECT_EQ(budget.num_retrieved, 148);   // 147.456
  EXPECT_EQ(budget.num_estimated, 1901);  // 1900.544
}

TEST(SelectionBudgetTest, ShortContextsGetTheFloors) {
  const SelectionBudget budget = BudgetOf({}, 192);
  EXPECT_EQ(budget.num_retrieved, 64);
  EXPECT_EQ(budget.num_estimated, 64);
}

TEST(SelectionBudgetTest, NeverMoreThanThereIs) {
  EXPECT_EQ(BudgetOf({}, 0).num_retrieved, 0);
  EXPECT_EQ(BudgetOf({}, 0).num_estimated, 0);
  EXPECT_EQ(BudgetOf({}, 64).num_retrieved, 64);
  EXPECT_EQ(BudgetOf({}, 64).num_estimated, 0);
  const SelectionBudget all = BudgetOf({.retrieval = 1.0}, 1024);
  EXPECT_EQ(all.num_retrieved, 1024);
  EXPECT_EQ(all.num_estimated, 0);
  const SelectionBudget both = BudgetOf({.retrieval = 0.6, .estimation = 0.6}, 1000 / 64 * 64);
  EXPECT_EQ(both.num_retrieved + both.num_estimated, 960);
}

TEST(SelectionBudgetTest, ZeroMeansNone) {
  EXPECT_EQ(BudgetOf({.estimation = 0}, 8192).num_estimated, 0);
  EXPECT_EQ(BudgetOf({.estimation = 0}, 8192).num_retrieved, 148);
  EXPECT_EQ(BudgetOf({.retrieval = 0}, 8192).num_retrieved, 0);
  EXPECT_EQ(BudgetOf({.retrieval = 0}, 8192).num_estimated, 1901);
}

TEST(SelectionBudgetTest, PassesTheRankingOn) {
  EXPECT_EQ(BudgetOf({.ranking = GroupRanking::kMaxOfSoftmax}, 64).ranking,
            GroupRanking::kMaxOfSoftmax);
}

}  // namespace
}  // namespace retroinfer
