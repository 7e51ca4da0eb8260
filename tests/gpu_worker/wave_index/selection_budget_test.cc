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

TEST(SelectionBudgetTest, CodesTakeCandidatesAndPages) {
  const SelectionBudget budget = CodedBudgetOf({.retrieval = 0.024}, 8192, 4);
  EXPECT_EQ(budget.num_clusters, 8192);
  EXPECT_EQ(budget.num_retrieved, 984);   // 12 % of them
  EXPECT_EQ(budget.num_pages, 787);       // 2.4 % of 131,072 tokens, 4 a page
  EXPECT_EQ(budget.num_estimated, 1901);  // 23.2 %
  EXPECT_EQ(CodedBudgetOf({.retrieval = 0.024}, 8192, 8).num_pages, 394);
  // A request that retrieves more has more candidates, too.
  const SelectionBudget more = CodedBudgetOf({.retrieval = 0.06}, 8192, 4);
  EXPECT_EQ(more.num_retrieved, 1967);
  EXPECT_EQ(more.num_pages, 1967);
}

TEST(SelectionBudgetTest, CodesOfShortContextsGetTheFloors) {
  const SelectionBudget budget = CodedBudgetOf({.retrieval = 0.024}, 1024, 4);
  EXPECT_EQ(budget.num_retrieved, 256);
  EXPECT_EQ(budget.num_pages, 256) << "1,024 tokens";
  EXPECT_EQ(budget.num_estimated, 256);
  const SelectionBudget all = CodedBudgetOf({.retrieval = 0.024}, 64, 4);
  EXPECT_EQ(all.num_retrieved, 64);
  EXPECT_EQ(all.num_pages, 64 * 19 / 4) << "all of them, part-filled";
}

TEST(SelectionBudgetTest, AllOrNothingWithCodes) {
  const SelectionBudget all = CodedBudgetOf({.retrieval = 1}, 1024, 4);
  EXPECT_EQ(all.num_retrieved, 1024);
  EXPECT_EQ(all.num_pages, 1024 * 19 / 4);
  const SelectionBudget none = CodedBudgetOf({.retrieval = 0}, 1024, 4);
  EXPECT_EQ(none.num_retrieved, 0);
  EXPECT_EQ(none.num_pages, 0);
  EXPECT_EQ(none.num_estimated, 238);
  EXPECT_EQ(CodedBudgetOf({}, 0, 4).num_pages, 0);
}

TEST(SelectionBudgetTest, PassesTheRankingOn) {
  EXPECT_EQ(BudgetOf({.ranking = GroupRanking::kMaxOfSoftmax}, 64).ranking,
            GroupRanking::kMaxOfSoftmax);
}

}  // namespace
}  // namespace retroinfer
