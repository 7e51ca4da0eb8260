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

// A step takes 10 ms, and one of the draft model 1 ms.
class ModelDraftPlannerTest : public DraftPlannerTest {
 protected:
  ModelDraftPlannerTest() { LearnBoth(10e-3, 1e-3); }
  // Rows cost next to nothing; reading takes a microsecond a row of a layer.
  void LearnBoth(double step, double draft_step) {
    for (int i = 0; i < 400; ++i) {
      const double rows = 1 + i % 8;
      costs_.Observe({.steps = 1, .step_rows = rows}, step + 1e-5 * rows);
      costs_.Observe({.draft_steps = rows, .draft_rows = rows}, (draft_step + 1e-6) * rows);
      costs_.Observe({.draft_reads = 1000 * rows}, 1e-3 * rows);
    }
  }
  RequestDescription::ByModel& AddModel(uint64_t id, double chance, int64_t unread = 0) {
    Add(id, 0, 0);
    input_.requests.back().by_model = {.rows = 8, .chance = chance, .unread = unread};
    return input_.requests.back().by_model;
  }
  int64_t DraftedOf(uint64_t id) const {
    const auto found = std::ranges::find(plan_.drafts, id, &StepPlan::Draft::id);
    return found == plan_.drafts.end() ? 0 : found->count;
  }
};

TEST_F(ModelDraftPlannerTest, TheModelsStepsAreCounted) {
  AddModel(1, 0.8);
  planner_.Plan(input_, plan_);
  // 1 token in 10 ms; 1.8 in 11; 2.44 in 12; 3.36 in 14; 4.33 in 18.
  EXPECT_EQ(DraftedOf(1), 8);
  EXPECT_EQ(RowsOf(1), 9);
  EXPECT_NEAR(plan_.step.draft_steps, 8, 1e-9);
}

TEST_F(ModelDraftPlannerTest, ASlowModelIsNotAsked) {
  LearnBoth(10e-3, 9e-3);
  AddModel(1, 0.8);
  planner_.Plan(input_, plan_);
  EXPECT_EQ(RowsOf(1), 1);
  EXPECT_TRUE(plan_.drafts.empty());
}

TEST_F(ModelDraftPlannerTest, ShortDraftsWhereItIsOftenWrong) {
  LearnBoth(10e-3, 2e-3);
  AddModel(1, 0.4);
  planner_.Plan(input_, plan_);
  // 1 token in 10 ms; 1.4 in 12; 1.56 in 14; 1.65 in 18.
  EXPECT_EQ(DraftedOf(1), 1);
}

// One alone would not pay for a step of the model, of which both have a row.
TEST_F(ModelDraftPlannerTest, TextsShareTheModelsSteps) {
  LearnBoth(10e-3, 6e-3);
  AddModel(1, 0.5);
  AddModel(2, 0.5);
  planner_.Plan(input_, plan_);
  EXPECT_EQ(RowsOf(1), 1);
  plan_ = {};
  input_ = {};
  for (uint64_t id = 1; id <= 4; ++id) AddModel(id, 0.9);
  planner_.Plan(input_, plan_);
  // 4 tokens in 10 ms; 7.6 in 16; 10.84 in 22.
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(DraftedOf(id), 2) << id;
}

TEST_F(ModelDraftPlannerTest, WhatATextSaysGoesFirst) {
  AddModel(1, 0.7);
  input_.requests.back().more_rows = 8;
  input_.requests.back().draft_chance = 0.9;
  planner_.Plan(input_, plan_);
  EXPECT_EQ(RowsOf(1), 9);
  EXPECT_TRUE(plan_.drafts.empty());
}

TEST_F(ModelDraftPlannerTest, ATextThatIsLessSureDoesNot) {
  AddModel(1, 0.9);
  input_.requests.back().more_rows = 8;
  input_.requests.back().draft_chance = 0.3;
  planner_.Plan(input_, plan_);
  EXPECT_EQ(DraftedOf(1), 8);
  EXPECT_EQ(RowsOf(1), 9);
}

// The model would be right more often, and is too slow: the text's draft is tried nevertheless.
TEST_F(ModelDraftPlannerTest, WhereTheModelDoesNotPayTheTextIsTried) {
  LearnBoth(10e-3, 20e-3);
  AddModel(1, 0.9);
  input_.requests.back().more_rows = 8;
  input_.requests.back().draft_chance = 0.5;
  planner_.Plan(input_, plan_);
  EXPECT_EQ(RowsOf(1), 9);
  EXPECT_TRUE(plan_.drafts.empty());
}

TEST_F(ModelDraftPlannerTest, ATextIsReadOnceThatWouldHavePaid) {
  AddModel(1, 0.8, 40'000);  // 40 ms
  input_.now = 1000;
  input_.requests.back().decoding_since = 1000 - 5e-3;
  planner_.Plan(input_, plan_);
  EXPECT_TRUE(plan_.draft_reads.empty()) << "it may be about to end";
  EXPECT_EQ(RowsOf(1), 1);
  input_.now += 0.2;
  planner_.Plan(input_, plan_);
  ASSERT_EQ(std::ssize(plan_.draft_reads), 1);
  EXPECT_EQ(plan_.draft_reads[0].id, 1u);
  // The round may take 50 ms, of which the step takes 10.
  EXPECT_GT(plan_.draft_reads[0].rows, 30'000);
  EXPECT_LE(plan_.draft_reads[0].rows, 40'000);
  EXPECT_EQ(RowsOf(1), 1) << "nothing is drafted yet";
}

TEST_F(ModelDraftPlannerTest, OneTextIsReadAtATime) {
  AddModel(1, 0.8, 40'000);
  AddModel(2, 0.8, 20'000);
  input_.now = 1000;
  input_.draft_reading = 2;
  planner_.Plan(input_, plan_);
  ASSERT_EQ(std::ssize(plan_.draft_reads), 1);
  EXPECT_EQ(plan_.draft_reads[0].id, 2u);
}

TEST_F(ModelDraftPlannerTest, NothingIsReadWhereDraftsWouldNotPay) {
  AddModel(1, 0.05, 40'000);
  AddModel(2, 0, 40'000);
  input_.now = 1000;
  planner_.Plan(input_, plan_);
  EXPECT_TRUE(plan_.draft_reads.empty());
  LearnBoth(10e-3, 20e-3);
  input_.requests[0].by_model.chance = 0.8;
  planner_.Plan(input_, plan_);
  EXPECT_TRUE(plan_.draft_reads.empty());
}

// A share of the time, however little the model is expected to bring.
TEST_F(ModelDraftPlannerTest, ASlowModelIsAskedNowAndThen) {
  LearnBoth(10e-3, 30e-3);
  AddModel(1, 0.8);
  input_.draft_untried = 250;
  planner_.Plan(input_, plan_);
  EXPECT_TRUE(plan_.drafts.empty());
  input_.draft_untried = 350;  // 3.5 s: 35 ms
  planner_.Plan(input_, plan_);
  EXPECT_EQ(DraftedOf(1), 1);
  EXPECT_EQ(RowsOf(1), 2);
}

TEST_F(ModelDraftPlannerTest, ATextIsReadNowAndThenForThat) {
  LearnBoth(10e-3, 30e-3);
  AddModel(1, 0.8, 40'000);  // 40 ms
  input_.now = 1000;
  input_.draft_untried = 300;
  planner_.Plan(input_, plan_);
  EXPECT_TRUE(plan_.draft_reads.empty());
  input_.draft_untried = 450;
  planner_.Plan(input_, plan_);
  ASSERT_EQ(std::ssize(plan_.draft_reads), 1);
  // Once begun, it goes on.
  plan_.draft_reads.clear();
  input_.draft_untried = 0;
  input_.draft_reading = 1;
  planner_.Plan(input_, plan_);
  EXPECT_EQ(std::ssize(plan_.draft_reads), 1);
}

TEST_F(ModelDraftPlannerTest, AFullBatchLeavesNoRows) {
  options_.max_batch = 2;
  AddModel(1, 0.9);
  AddModel(2, 0.9, 100);
  input_.now = 1000;
  planner_.Plan(input_, plan_);
  EXPECT_EQ(std::ssize(plan_.decode), 2);
  EXPECT_TRUE(plan_.draft_reads.empty());
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
