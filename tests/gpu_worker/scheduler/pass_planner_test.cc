// Which rows go through which layer: single plans.
#include "gpu_worker/scheduler/pass_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu_worker/scheduler/scheduler.h"

namespace retroinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class PassPlannerTest : public testing::Test {
 protected:
  PassPlannerTest() {
    input_.now = 100;
    input_.lanes = {{.max_tokens = 131072, .members = {}}, {.max_tokens = 8192, .members = {}}};
    input_.weights = {1};
    input_.free_dense_blocks = 1000;
    input_.free_meta_blocks = 1000;
    input_.free_table_rows = 10;
    input_.free_passes = 64;
  }

  RequestDescription& Add(uint64_t id, RequestPhase phase, int64_t prompt_tokens) {
    input_.requests.push_back({.id = id,
                               .phase = phase,
                               .arrival = 100,
                               .prompt_tokens = prompt_tokens,
                               .dense_blocks = 1,
                               .takes_in_order = prompt_tokens < 8192,
                               .can_decode = phase == RequestPhase::kDecoding});
    return input_.requests.back();
  }
  // A group of one request in a lane.
  void Occupy(size_t lane, uint64_t id, int64_t rows) {
    input_.lanes[lane].is_free = false;
    input_.lanes[lane].members = {{.id = id, .arrival = 100, .rows = rows}};
    input_.lanes[lane].layers_open = 4;
    Add(id, RequestPhase::kReading, rows);
  }
  StepPlan Plan() { return scheduler_.Plan(input_); }

  SchedulerInput input_;
  Scheduler scheduler_{{.num_layers = 4, .max_rows = 1024, .max_batch = 4}};
};

TEST_F(PassPlannerTest, PassesFitIntoTheTimeBetweenTwoSteps) {
  Occupy(0, 1, 100000);
  Add(2, RequestPhase::kDecoding, 500);
  const StepPlan plan = Plan();
  double seconds = scheduler_.costs().Seconds(plan.step);
  for (const StepPlan::Pass& pass : plan.passes) seconds += scheduler_.costs().Seconds(pass.work);
  EXPECT_LE(seconds, 0.05);
  EXPECT_GE(seconds, 0.04);
  EXPECT_THAT(plan.decode, ElementsAre(2));
}

TEST_F(PassPlannerTest, OnASlowDeviceAPassHasFewerRows) {
  for (int i = 0; i < 50; ++i) {
    scheduler_.costs().Observe({.passes = 1, .pass_rows = 64}, 0.005);
    scheduler_.costs().Observe({.passes = 1, .pass_rows = 512}, 0.04);
  }
  Occupy(0, 1, 100000);
  Add(2, RequestPhase::kDecoding, 500);
  const StepPlan plan = Plan();
  ASSERT_FALSE(plan.passes.empty());
  EXPECT_LT(plan.passes[0].num_rows, 1024);
  EXPECT_EQ(plan.passes[0].num_rows % 64, 0);
}

TEST_F(PassPlannerTest, StepsThatTakeAllOfTheTimeLeavePromptsSome) {
  Occupy(0, 1, 100000);
  for (uint64_t id = 2; id <= 5; ++id) Add(id, RequestPhase::kDecoding, 500);
  scheduler_.costs().Observe({.steps = 1, .step_rows = 4, .step_context = 2000}, 0.2);
  EXPECT_FALSE(Plan().passes.empty());
}

TEST_F(PassPlannerTest, NoMoreIsEnqueuedThanANewcomerCanWaitFor) {
  Occupy(0, 1, 100000);
  input_.seconds_in_flight = 0.03;
  EXPECT_THAT(Plan().passes, IsEmpty());
  input_.seconds_in_flight = 0;
  input_.free_passes = 3;
  EXPECT_EQ(Plan().passes.size(), 3u);
}

TEST_F(PassPlannerTest, ALaneThatHasWorkGetsItsLeastShare) {
  Occupy(0, 1, 100000);
  Occupy(1, 2, 8000);
  double seconds[2] = {};
  for (int round = 0; round < 300; ++round) {
    for (const StepPlan::Pass& pass : Plan().passes) {
      seconds[pass.lane] += scheduler_.costs().Seconds(pass.work);
    }
  }
  EXPECT_NEAR(seconds[0] / (seconds[0] + seconds[1]), PassPlanner::kLeastShare, 0.03);
}

}  // namespace
}  // namespace retroinfer
