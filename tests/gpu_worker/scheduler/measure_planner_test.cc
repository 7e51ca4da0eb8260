// Plans for tokens that are given.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu_worker/scheduler/scheduler.h"

namespace retroinfer {
namespace {

using ::testing::ElementsAre;

class MeasurePlannerTest : public testing::Test {
 protected:
  MeasurePlannerTest() {
    input_.now = 100;
    input_.lanes = {{.max_tokens = 131072, .members = {}}, {.max_tokens = 8192, .members = {}}};
    input_.weights = {1};
    input_.free_passes = 64;
  }
  void AddDecoding(uint64_t id, int64_t more_rows) {
    input_.requests.push_back({.id = id,
                               .phase = RequestPhase::kDecoding,
                               .arrival = 100,
                               .prompt_tokens = 100,
                               .context = 1000,
                               .can_decode = true,
                               .more_rows = more_rows});
  }
  // A group of one request behind its last layer.
  void AddMeasured(size_t lane, uint64_t id, int64_t rows) {
    input_.lanes[lane].is_free = false;
    input_.lanes[lane].members = {{.id = id, .arrival = 100, .rows = rows + 1}};
    input_.lanes[lane].layer = 4;
    input_.lanes[lane].rows_to_measure = rows;
    input_.requests.push_back(
        {.id = id, .phase = RequestPhase::kSettling, .arrival = 100, .prompt_tokens = rows + 1});
  }
  StepPlan Plan() { return scheduler_.Plan(input_); }

  SchedulerInput input_;
  Scheduler scheduler_{{.num_layers = 4, .max_rows = 1024, .max_batch = 4}};
};

TEST_F(MeasurePlannerTest, TokensThatAreGivenFillTheStepInTurn) {
  AddDecoding(1, 0);
  AddDecoding(2, 9);
  EXPECT_THAT(Plan().decode, ElementsAre(1, 2, 2, 2)) << "as many as the batch has rows";
  input_.requests[0].more_rows = 1;
  EXPECT_THAT(Plan().decode, ElementsAre(1, 2, 1, 2));
  input_.requests[1].more_rows = 0;
  EXPECT_THAT(Plan().decode, ElementsAre(1, 2, 1));
  input_.requests[0].can_decode = false;
  EXPECT_THAT(Plan().decode, ElementsAre(2)) << "its segment is late";
}

TEST_F(MeasurePlannerTest, ScoresGetWhatTailsLeave) {
  AddDecoding(1, 9);
  AddDecoding(2, 1);
  for (RequestDescription& request : input_.requests) request.measures_given = true;
  input_.requests[1].given_tokens = 2;
  EXPECT_THAT(Plan().decode, ElementsAre(1, 2, 2, 1));
}

TEST_F(MeasurePlannerTest, TokensThatAreGivenKeepTheStepWithinTheTarget) {
  const Work row{.steps = 1, .step_rows = 1, .step_context = 1000};
  const Work two{.steps = 1, .step_rows = 2, .step_context = 2000};
  for (int i = 0; i < 200; ++i) {  // a row takes 20 ms of the 50
    scheduler_.costs().Observe(row, 0.020);
    scheduler_.costs().Observe(two, 0.040);
  }
  AddDecoding(1, 9);
  EXPECT_THAT(Plan().decode, ElementsAre(1, 1));
}

// A step of a row takes seven times the target, as on a CPU, and nearly as long with three rows
// more.
TEST_F(MeasurePlannerTest, TheTargetHoldsForThoseWhoWaitForATokenOnly) {
  for (int i = 0; i < 200; ++i) {
    for (double rows = 1; rows <= 4; ++rows) {
      scheduler_.costs().Observe({.steps = 1, .step_rows = rows, .step_context = 1000 * rows},
                                 0.342 + 0.004 * rows);
    }
  }
  AddDecoding(1, 9);
  input_.requests[0].measures_given = true;
  EXPECT_THAT(Plan().decode, ElementsAre(1, 1, 1, 1)) << "as many as the batch has rows";
  AddDecoding(2, 0);
  EXPECT_THAT(Plan().decode, ElementsAre(1, 2)) << "somebody reads the answer of the other one";
  input_.requests[1].measures_given = true;
  EXPECT_THAT(Plan().decode, ElementsAre(1, 2, 1, 1));
}

TEST_F(MeasurePlannerTest, AStepOfGivenTokensTakesAtMostTwoOfOneRow) {
  for (int i = 0; i < 200;
       ++i) {  // a long context: nearly all of a step's time is that of its rows
    for (double rows = 1; rows <= 4; ++rows) {
      scheduler_.costs().Observe({.steps = 1, .step_rows = rows, .step_context = 1000 * rows},
                                 0.02 + 0.2 * rows);
    }
  }
  AddDecoding(1, 9);
  input_.requests[0].measures_given = true;
  EXPECT_THAT(Plan().decode, ElementsAre(1, 1)) << "0.42 s of 0.44";
}

TEST_F(MeasurePlannerTest, RowsOfAPromptAreMeasuredByPriorityForHalfOfTheTime) {
  for (int i = 0; i < 100; ++i) scheduler_.costs().Observe({.measured_rows = 4}, 0.010);
  AddMeasured(0, 1, 8999);
  const StepPlan plan = Plan();
  EXPECT_FALSE(plan.empty());
  EXPECT_THAT(plan.measure, ElementsAre(StepPlan::Measure{0, 8}));
  AddMeasured(1, 2, 3);
  EXPECT_THAT(Plan().measure, ElementsAre(StepPlan::Measure{1, 3})) << "the shorter one first";
  input_.lanes[0].members[0].priority = input_.requests[0].priority = -1;
  EXPECT_THAT(Plan().measure, ElementsAre(StepPlan::Measure{0, 8}));
  Scheduler slow({.num_layers = 4, .max_rows = 1024, .max_batch = 4});
  for (int i = 0; i < 100; ++i) slow.costs().Observe({.measured_rows = 4}, 10.0);
  EXPECT_THAT(slow.Plan(input_).measure, ElementsAre(StepPlan::Measure{0, 4}))
      << "a batch at least";
}

}  // namespace
}  // namespace retroinfer
