#include "gpu_worker/scheduler/tail_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "gpu_worker/scheduler/scheduler.h"

namespace retroinfer {
namespace {

using ::testing::ElementsAre;

class TailPlannerTest : public testing::Test {
 protected:
  TailPlannerTest() : TailPlannerTest({.num_layers = 4, .max_rows = 1024, .max_batch = 4}) {}
  explicit TailPlannerTest(const SchedulerOptions& options) : scheduler_(options) {
    input_.now = 100;
    input_.lanes = {{.max_tokens = 131072, .members = {}}, {.max_tokens = 8192, .members = {}}};
    input_.weights = {1};
    input_.free_passes = 64;
  }
  RequestDescription& AddAnswer(uint64_t id) {
    input_.requests.push_back({.id = id,
                               .phase = RequestPhase::kDecoding,
                               .arrival = 100,
                               .prompt_tokens = 100,
                               .context = 1000,
                               .can_decode = true});
    return input_.requests.back();
  }
  // `given` tokens are left.
  RequestDescription& AddTail(uint64_t id, int64_t given) {
    RequestDescription& request = AddAnswer(id);
    request.given_tokens = given;
    request.more_rows = given - 1;
    request.measures_given = true;
    return request;
  }
  StepPlan Plan() { return scheduler_.Plan(input_); }
  static int64_t RowsOf(uint64_t id, const StepPlan& plan) {
    return std::ranges::count(plan.decode, id);
  }

  SchedulerInput input_;
  Scheduler scheduler_;
};

TEST_F(TailPlannerTest, TheShortestTailGoesFirst) {
  AddTail(1, 10);
  AddTail(2, 2);
  AddTail(3, 11);
  EXPECT_THAT(Plan().decode, ElementsAre(2, 2, 1, 1));
  input_.requests[0].more_rows = 0;
  EXPECT_THAT(Plan().decode, ElementsAre(2, 2, 1, 3));
  input_.requests[0].more_rows = 9;
  input_.requests[1].given_tokens = 20;  // as many rows more as before: it has begun slowly
  EXPECT_THAT(Plan().decode, ElementsAre(1, 1, 1, 1));
  input_.requests[0].can_decode = false;
  EXPECT_THAT(Plan().decode, ElementsAre(3, 3, 3, 3));
}

TEST_F(TailPlannerTest, RowsOfTailsAreWorkOfTheirOwn) {
  AddAnswer(1);
  AddTail(2, 2).cold_tokens = 900;
  const StepPlan plan = Plan();
  EXPECT_THAT(plan.decode, ElementsAre(1, 2, 2));
  EXPECT_EQ(plan.step.steps, 1);
  EXPECT_EQ(plan.step.step_rows, 1);
  EXPECT_EQ(plan.step.step_context, 1000);
  EXPECT_EQ(plan.step.tail_rows, 2);
  EXPECT_EQ(plan.step.tail_context, 2000);
  EXPECT_EQ(plan.step.cold_context, 1800);
}

TEST_F(TailPlannerTest, ATailsSegmentGoesLiveOnce) {
  AddTail(1, 3).goes_live = true;
  EXPECT_THAT(Plan().go_live, ElementsAre(1));
}

class TailsOfRunsTest : public TailPlannerTest {
 protected:
  TailsOfRunsTest()
      : TailPlannerTest({.num_layers = 4, .max_rows = 1024, .max_batch = 4, .more_tail_rows = 8}) {}
};

TEST_F(TailsOfRunsTest, AStepHasAllRowsOfARunOrNone) {
  AddTail(1, 20).rows_of_run = 8;
  EXPECT_EQ(RowsOf(1, Plan()), 8) << "two runs are more than 12 rows";
  AddTail(2, 3).rows_of_run = 8;
  const StepPlan plan = Plan();
  EXPECT_THAT(plan.decode, ElementsAre(2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_EQ(plan.step.tail_rows, 11);
}

TEST_F(TailsOfRunsTest, ThereIsRoomForARunBesideAllAnswers) {
  for (uint64_t id = 1; id <= 4; ++id) AddAnswer(id);
  EXPECT_EQ(std::ssize(Plan().decode), 4);
  input_.requests.pop_back();
  AddTail(5, 100).rows_of_run = 8;
  const StepPlan plan = Plan();
  EXPECT_EQ(RowsOf(5, plan), 8);
  EXPECT_EQ(std::ssize(plan.decode), 11);
}

class TailsOfALargeBatchTest : public TailPlannerTest {
 protected:
  TailsOfALargeBatchTest() : TailPlannerTest({.num_layers = 4, .max_rows = 1024, .max_batch = 64}) {
    for (int i = 0; i < 300; ++i) {
      const double rows = 1 + i % 16;
      const double answers = 1 + i % 3;
      Work work{.steps = 1,
                .step_rows = answers,
                .step_context = 1000 * answers,
                .tail_rows = rows,
                .tail_context = 1000 * rows,
                .cold_context = i % 2 == 0 ? 0 : 1000 * rows};
      scheduler_.costs().Observe(work, Truth(work));
    }
  }
  // A step of 5 ms, 1 ms a row; a cold row takes 5 ms.
  static double Truth(const Work& work) {
    return 5e-3 * work.steps + 1e-3 * (work.step_rows + work.tail_rows) + 4e-6 * work.cold_context;
  }
  // A prompt in a lane that passes are busy with for long.
  void AddPrompt(uint64_t id) {
    input_.requests.push_back(
        {.id = id, .phase = RequestPhase::kReading, .arrival = 100, .prompt_tokens = 100000});
    LaneDescription& lane = input_.lanes[0];
    lane.is_free = false;
    lane.members = {{.id = id, .arrival = 100, .rows = 100000, .takes_in_order = true}};
    lane.layers_open = 4;
  }
  double Seconds(const StepPlan& plan) const {
    double seconds = Truth(plan.step);
    for (const StepPlan::Pass& pass : plan.passes) seconds += scheduler_.costs().Seconds(pass.work);
    return seconds;
  }
};

TEST_F(TailsOfALargeBatchTest, StepsOfWarmAndOfColdRowsTakeTheTargetBesideAnAnswer) {
  AddAnswer(1);
  AddTail(2, 64);
  EXPECT_NEAR(RowsOf(2, Plan()), 44, 3);
  input_.requests[1].cold_tokens = 1000;
  EXPECT_NEAR(RowsOf(2, Plan()), 8, 1);
}

TEST_F(TailsOfALargeBatchTest, RunsAreAddedWhileTheyTakeTheTarget) {
  AddAnswer(1);
  AddTail(2, 64).rows_of_run = 16;
  EXPECT_EQ(RowsOf(2, Plan()), 32) << "a third run would be too much";
  input_.requests[1].cold_tokens = 1000;
  EXPECT_EQ(RowsOf(2, Plan()), 16) << "the first one, whatever it takes";
}

// Sixteen cold rows would take 80 ms.
TEST_F(TailsOfALargeBatchTest, ColdTailsWaitForEachOtherAndNotTheAnswerForThem) {
  AddAnswer(1);
  for (uint64_t id = 2; id < 18; ++id) AddTail(id, 64).cold_tokens = 1000;
  const StepPlan plan = Plan();
  EXPECT_EQ(RowsOf(1, plan), 1);
  EXPECT_LE(Truth(plan.step), 0.055);
  EXPECT_GE(Truth(plan.step), 0.040);
  input_.requests[0].can_decode = false;
  EXPECT_GT(Truth(Plan().step), 0.085) << "nobody reads an answer: a row of each and more";
}

TEST_F(TailsOfALargeBatchTest, TheFirstTailHasARowOfAnyStep) {
  for (uint64_t id = 1; id < 50; ++id) AddAnswer(id);  // 54 ms
  AddTail(50, 64);
  AddTail(51, 63);
  const StepPlan plan = Plan();
  EXPECT_GE(RowsOf(51, plan), 1);
  EXPECT_LE(Truth(plan.step), 1.25 * 0.054 + 0.002) << "as much longer as for prompts";
}

TEST_F(TailsOfALargeBatchTest, TailsGetHalfOfTheTimeOfPrompts) {
  AddAnswer(1);
  AddPrompt(2);
  AddTail(3, 64);
  const StepPlan plan = Plan();
  EXPECT_NEAR(RowsOf(3, plan), 22, 3) << "(50 - 6) / 2 ms";
  EXPECT_FALSE(plan.passes.empty());
  EXPECT_LE(Seconds(plan), 0.055);
  input_.requests[2].given_tokens = 5;
  input_.requests[2].more_rows = 4;
  const StepPlan shorter = Plan();
  EXPECT_EQ(RowsOf(3, shorter), 5);
  EXPECT_GE(Seconds(shorter), 0.040) << "prompts get what tails leave";
}

// A tenant with many short tails beside one with a long one.
TEST_F(TailsOfALargeBatchTest, TenantsTakeTurns) {
  input_.weights = {1, 1};
  AddAnswer(1);
  for (uint64_t id = 2; id < 10; ++id) AddTail(id, 20);
  AddTail(10, 60).tenant = 1;
  std::vector<int64_t> rows = {0, 0};
  for (int i = 0; i < 10; ++i) {
    for (const uint64_t id : Plan().decode) {
      if (id != 1) ++rows[id == 10 ? 1 : 0];
    }
  }
  // Rows of the answer are the first tenant's, too.
  EXPECT_NEAR(static_cast<double>(rows[1]), static_cast<double>(rows[0]) + 10, 60)
      << "a step's rows at most";
}

TEST_F(TailsOfALargeBatchTest, AHigherPriorityGoesFirstAndSoDoesWhoHasWaited) {
  AddAnswer(1);
  AddTail(2, 64);
  AddTail(3, 300).priority = -1;
  EXPECT_GE(RowsOf(3, Plan()), 38);
  input_.requests[2].priority = 0;
  EXPECT_EQ(RowsOf(3, Plan()), 0);
  input_.requests[2].arrival = 0;  // a second of waiting for a tenth of a second of work
  EXPECT_GE(RowsOf(3, Plan()), 38);
}

TEST_F(TailPlannerTest, WhereNobodyReadsAnAnswerAStepTakesAtMostTwoOfOneRow) {
  for (int i = 0; i < 200; ++i) {
    for (double rows = 1; rows <= 4; ++rows) {
      scheduler_.costs().Observe({.steps = 1, .tail_rows = rows, .tail_context = 1000 * rows},
                                 0.3 + 0.2 * rows);
    }
  }
  AddTail(1, 9);
  EXPECT_THAT(Plan().decode, ElementsAre(1, 1, 1)) << "0.9 s of 1.0";
}

}  // namespace
}  // namespace retroinfer
