#include "gpu_worker/scheduler/time_estimates.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

class TimeEstimatesTest : public testing::Test {
 protected:
  TimeEstimatesTest() {
    for (int i = 0; i < 50; ++i) costs_.Observe({.passes = 1, .pass_rows = 1000}, 0.01);
    input_.weights = {1, 1};
  }
  RequestDescription& Add(uint64_t id, int64_t prompt_tokens) {
    input_.requests.push_back({.id = id,
                               .phase = RequestPhase::kWaiting,
                               .arrival = 100,
                               .prompt_tokens = prompt_tokens,
                               .takes_in_order = true});
    return input_.requests.back();
  }

  const SchedulerOptions options_{.num_layers = 4, .max_rows = 1024, .max_batch = 4};
  CostModel costs_;
  const TimeEstimates times_{options_, costs_};
  SchedulerInput input_;
};

TEST_F(TimeEstimatesTest, LaterPartsOfAPromptCountAndCachedTokensDoNot) {
  RequestDescription& request = Add(1, 2000);
  const double whole = times_.SecondsToRead(request);
  EXPECT_GT(whole, 0.05) << "four layers of two passes";
  request.prompt_tokens = 1000;
  request.later_tokens = 1000;
  EXPECT_NEAR(times_.SecondsToRead(request), whole, 0.1 * whole);
  request.later_tokens = 0;
  request.cached_tokens = 900;
  EXPECT_LT(times_.SecondsToRead(request), 0.5 * whole);
}

TEST_F(TimeEstimatesTest, ATailIsRowsOfStepsBehindItsText) {
  RequestDescription& request = Add(1, 1000);
  const double head = times_.SecondsToRead(request);
  request.given_tokens = 9;
  request.given_depth = 50000;
  const Work tail{.steps = 3, .tail_rows = 9, .tail_context = 450000};
  EXPECT_NEAR(times_.SecondsToRead(request), head + costs_.Seconds(tail), 1e-9);
  EXPECT_GT(costs_.Seconds({.tail_context = 450000}), 0);
}

TEST_F(TimeEstimatesTest, OfATailThatDecodesOnlyTheFirstRowsAreCold) {
  const RequestDescription request{
      .context = 1000, .cold_tokens = 900, .given_tokens = 20, .more_rows = 7};
  EXPECT_DOUBLE_EQ(times_.SecondsOfTail(request),
                   costs_.Seconds({.tail_rows = 20, .tail_context = 20000, .cold_context = 7200}));
}

// Rounds that vary are planned for less, so that nearly all keep to the target.
TEST_F(TimeEstimatesTest, RoundsThatVaryArePlannedForLess) {
  EXPECT_DOUBLE_EQ(times_.SecondsOfRound(), options_.inter_token_target);
  const Work round{.steps = 1, .step_rows = 1, .passes = 1, .pass_rows = 1000};
  for (int i = 0; i < 300; ++i) costs_.Observe(round, i % 3 == 0 ? 0.04 : 0.01);
  ASSERT_GT(costs_.margin(), 1.5);
  EXPECT_NEAR(times_.SecondsOfRound(), options_.inter_token_target * 1.2 / costs_.margin(), 1e-9);
}

TEST_F(TimeEstimatesTest, BesideAStepArePassesAndMeasures) {
  StepPlan plan;
  plan.passes = {{.work = {.passes = 1, .pass_rows = 1000}}};
  plan.measure = {{.lane = 0, .num_rows = 4}};
  EXPECT_NEAR(times_.SecondsBesideStep(plan), 0.01 + times_.SecondsToMeasure(plan), 1e-3);
}

TEST_F(TimeEstimatesTest, ALaneWithoutWorkTakesNoTime) {
  LaneDescription lane{.max_tokens = 8192, .members = {}};
  EXPECT_EQ(times_.SecondsLeft(lane), 0);
  lane.members = {{.id = 1, .rows = 1000}};
  const double all = times_.SecondsLeft(lane);
  lane.layer = 2;
  EXPECT_NEAR(times_.SecondsLeft(lane), all / 2, 0.01 * all);
  lane.layer = options_.num_layers;
  EXPECT_EQ(times_.SecondsLeft(lane), 0) << "its rows are only measured";
}

TEST_F(TimeEstimatesTest, PromptsGetWhatAStepLeavesButAQuarterOfALongStep) {
  EXPECT_DOUBLE_EQ(TimeEstimates::SecondsForPrompts(0.05, 0.01), 0.04);
  EXPECT_DOUBLE_EQ(TimeEstimates::SecondsForPrompts(0.05, 0.2), 0.05);
}

TEST_F(TimeEstimatesTest, OnlyWorkBesideClusteringHasItsTerm) {
  Work work{.passes = 1, .pass_rows = 1000};
  times_.SecondsBeside(/*is_clustering=*/true, work);
  EXPECT_GT(work.seconds_beside_clustering, 0);
  times_.SecondsBeside(/*is_clustering=*/false, work);
  EXPECT_EQ(work.seconds_beside_clustering, 0);
}

TEST_F(TimeEstimatesTest, MeasuresAreAddedUp) {
  for (int i = 0; i < 100; ++i) costs_.Observe({.measured_rows = 4}, 0.010);
  StepPlan plan;
  EXPECT_EQ(times_.SecondsToMeasure(plan), 0);
  plan.measure = {{.lane = 0, .num_rows = 4}, {.lane = 1, .num_rows = 8}};
  EXPECT_DOUBLE_EQ(times_.SecondsToMeasure(plan), costs_.Seconds({.measured_rows = 12}));
  EXPECT_GT(times_.SecondsToMeasure(plan), 0.01);
}

TEST_F(TimeEstimatesTest, AFirstTokenComesAfterThoseThatGoBeforeInAnyCase) {
  Add(1, 2000);
  const RequestDescription own = input_.requests[0];
  const double alone = times_.EarliestFirstToken(input_, own);
  EXPECT_DOUBLE_EQ(alone, times_.SecondsToRead(own));
  Add(2, 4000);                // longer: lets it pass
  Add(3, 1000).tenant = 1;     // another tenant's: may not count
  Add(4, 1000).priority = 1;   // lower
  Add(5, 1000).arrival = 101;  // later
  EXPECT_DOUBLE_EQ(times_.EarliestFirstToken(input_, own), alone);
  Add(6, 1000);
  EXPECT_GT(times_.EarliestFirstToken(input_, own), 1.3 * alone);
}

}  // namespace
}  // namespace retroinfer
