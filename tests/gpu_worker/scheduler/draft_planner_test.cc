#include "gpu_worker/scheduler/draft_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace retroinfer {
namespace {

class DraftPlannerTest : public testing::Test {
 protected:
  DraftPlannerTest() {
    const std::vector<double> weights = {1};
    constexpr bool kWants[] = {true};
    shares_.Update(weights, kWants);
  }
  // A step takes `step` seconds, and `row` for each row.
  void Learn(double step, double row) {
    for (int i = 0; i < 400; ++i) {
      const double rows = 1 + i % 8;
      costs_.Observe({.steps = 1, .step_rows = rows}, step + row * rows);
    }
  }
  void Add(uint64_t id, int64_t drafts, double chance) {
    RequestDescription& request = input_.requests.emplace_back();
    request.id = id;
    request.phase = RequestPhase::kDecoding;
    request.more_rows = drafts;
    request.draft_chance = chance;
    plan_.decode.push_back(id);
    plan_.step.steps = 1;
    plan_.step.step_rows += 1;
  }
  int64_t RowsOf(uint64_t id) const {
    return std::count(plan_.decode.begin(), plan_.decode.end(), id);
  }

  SchedulerOptions options_{.max_batch = 12};
  CostModel costs_;
  TimeEstimates times_{options_, costs_};
  TenantShares shares_;
  DraftPlanner planner_{options_, times_, shares_};
  SchedulerInput input_;
  StepPlan plan_;
};

TEST_F(DraftPlannerTest, RowsThatCostNextToNothingAreAllTried) {
  Learn(10e-3, 1e-5);
  Add(1, 8, 0.9);
  planner_.Plan(input_, plan_);
  EXPECT_EQ(RowsOf(1), 9);
  EXPECT_EQ(plan_.step.step_rows, 9);
  EXPECT_EQ(shares_.Served(0), 8);
}

// With rows of a third of a step each, the n-th draft is worth its row while chance^n is more than
// the share of a row in the time of a token.
TEST_F(DraftPlannerTest, NoMoreAreTriedThanPay) {
  Learn(9e-3, 3e-3);
  Add(1, 8, 0.7);
  planner_.Plan(input_, plan_);
  // 1 token in 12 ms; 1.7 in 15; 2.19 in 18; 2.53 in 21; 2.77 in 24.
  EXPECT_EQ(RowsOf(1), 3);
}

TEST_F(DraftPlannerTest, StepsHaveFewShapes) {
  Learn(10e-3, 1e-5);
  Add(1, 7, 0.9);
  planner_.Plan(input_, plan_);
  EXPECT_EQ(RowsOf(1), 1 + 4) << "8 would be the next number";
  options_.max_batch = 8;
  plan_ = {};
  input_ = {};
  Add(1, 8, 0.9);
  planner_.Plan(input_, plan_);
  EXPECT_EQ(RowsOf(1), 8) << "all there are";
}

TEST_F(DraftPlannerTest, WhatIsSeldomRightIsNotTried) {
  Learn(9e-3, 3e-3);
  Add(1, 8, 0.2);
  planner_.Plan(input_, plan_);
  EXPECT_EQ(RowsOf(1), 1);
  EXPECT_EQ(plan_.step.step_rows, 1);
}

TEST_F(DraftPlannerTest, AGainThatMayBeAnErrorIsNone) {
  Learn(10e-3, 1e-7);
  Add(1, 1, DraftPlanner::kLeastGain / 2);
  planner_.Plan(input_, plan_);
  EXPECT_EQ(RowsOf(1), 1);
}

TEST_F(DraftPlannerTest, TheBestDraftsOfABatchComeFirst) {
  Learn(10e-3, 2e-4);
  options_.max_batch = 6;
  Add(1, 8, 0.5);
  Add(2, 8, 0.9);
  Add(3, 8, 0);
  planner_.Plan(input_, plan_);
  EXPECT_EQ(std::ssize(plan_.decode), 6);
  EXPECT_EQ(RowsOf(1), 1) << "0.5 < 0.9^3";
  EXPECT_EQ(RowsOf(2), 4) << "all that are free";
  EXPECT_EQ(RowsOf(3), 1);
}

TEST_F(DraftPlannerTest, OthersDoNotWaitForLong) {
  Learn(60e-3, 8e-3);  // more than the target
  for (uint64_t id = 2; id <= 4; ++id) Add(id, 0, 0);
  Add(1, 8, 0.99);
  planner_.Plan(input_, plan_);
  // 92 ms for four rows; a quarter more is 115.
  EXPECT_EQ(RowsOf(1), 3);
}

TEST_F(DraftPlannerTest, GivenTokensAreNoDrafts) {
  Learn(10e-3, 1e-5);
  Add(1, 8, 1);
  input_.requests.back().measures_given = true;
  planner_.Plan(input_, plan_);
  EXPECT_EQ(RowsOf(1), 1);
}

}  // namespace
}  // namespace retroinfer
