#include "gpu_worker/scheduler/queue_wait.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

class QueueWaitTest : public testing::Test {
 protected:
  QueueWaitTest() {
    for (int i = 0; i < 50; ++i) costs_.Observe({.passes = 1, .pass_rows = 1000}, 0.01);
    input_.now = 100;
    input_.lanes = {{.max_tokens = 131072, .members = {}}, {.max_tokens = 8192, .members = {}}};
  }
  RequestDescription& Add(uint64_t id, RequestPhase phase, int64_t prompt_tokens) {
    input_.requests.push_back({.id = id,
                               .phase = phase,
                               .arrival = 100,
                               .prompt_tokens = prompt_tokens,
                               .takes_in_order = true,
                               .can_decode = phase == RequestPhase::kDecoding});
    return input_.requests.back();
  }

  const SchedulerOptions options_{.num_layers = 4, .max_rows = 1024, .max_batch = 4};
  CostModel costs_;
  const TimeEstimates times_{options_, costs_};
  const BatchRows rows_{options_, times_};
  QueueWait wait_{options_, times_, rows_};
  SchedulerInput input_;
};

TEST_F(QueueWaitTest, TheWaitIsThatOfAllPromptsBesideTheSteps) {
  EXPECT_EQ(wait_.Expected(input_), 0);
  Add(1, RequestPhase::kWaiting, 1000);
  const double one = wait_.Expected(input_);
  EXPECT_DOUBLE_EQ(one, times_.SecondsToRead(input_.requests[0]));
  input_.lanes[1].is_free = false;
  input_.lanes[1].members = {{.id = 2, .arrival = 100, .rows = 1000}};
  input_.lanes[1].layers_open = 4;
  Add(2, RequestPhase::kReading, 1000);
  const double two = wait_.Expected(input_);
  EXPECT_NEAR(two, 2 * one, 0.01 * one) << "what is in a lane counts, too";
  Add(3, RequestPhase::kDecoding, 100);
  const double beside = wait_.Expected(input_);
  EXPECT_GT(beside, two);
  for (int i = 0; i < 100; ++i) costs_.Observe({.steps = 1, .step_rows = 1}, 0.1);
  EXPECT_GT(wait_.Expected(input_), 4 * two) << "steps that take all the time leave little";
}

TEST_F(QueueWaitTest, WhereAllRowsAreTakenTheRateAtWhichTheyComeFreeCounts) {
  uint64_t first = 1;
  for (int round = 0; round < 600; ++round, input_.now += 0.1) {
    if (round % 10 == 9) ++first;  // a request a second ends, another takes its row
    input_.requests.clear();
    for (uint64_t id = first; id < first + 4; ++id) Add(id, RequestPhase::kDecoding, 100);
    wait_.Update(input_);
  }
  const double none_waits = wait_.Expected(input_);
  for (uint64_t id = 1000; id < 1020; ++id) Add(id, RequestPhase::kWaiting, 1);
  EXPECT_LT(none_waits, 2);
  EXPECT_NEAR(wait_.Expected(input_), 20, 5) << "twenty requests need twenty rows";
}

}  // namespace
}  // namespace retroinfer
