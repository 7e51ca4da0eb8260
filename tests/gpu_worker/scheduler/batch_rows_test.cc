#include "gpu_worker/scheduler/batch_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer {
namespace {

using ::testing::ElementsAre;

class BatchRowsTest : public testing::Test {
 protected:
  RequestDescription& Add(uint64_t id, RequestPhase phase) {
    input_.requests.push_back(
        {.id = id, .phase = phase, .can_decode = phase == RequestPhase::kDecoding});
    return input_.requests.back();
  }
  std::vector<uint64_t> NextStep(const StepPlan& plan = {}) const {
    std::vector<uint64_t> ids;
    for (const auto* const request : rows_.NextStep(input_, plan)) ids.push_back(request->id);
    return ids;
  }

  const SchedulerOptions options_{.num_layers = 4, .max_rows = 1024, .max_batch = 4};
  CostModel costs_;
  const TimeEstimates times_{options_, costs_};
  const BatchRows rows_{options_, times_};
  SchedulerInput input_;
};

TEST_F(BatchRowsTest, OnlyRequestsThatCanDecodeAndHaveMemoryAreInTheStep) {
  Add(1, RequestPhase::kDecoding);
  Add(2, RequestPhase::kDecoding).can_decode = false;  // its segment is late
  Add(3, RequestPhase::kDecoding).free_tokens = 0;
  Add(4, RequestPhase::kSettling);
  Add(5, RequestPhase::kDecoding);
  EXPECT_THAT(NextStep(), ElementsAre(1, 5));
  StepPlan plan;
  plan.grow = {3};
  plan.suspend = {5};
  EXPECT_THAT(NextStep(plan), ElementsAre(1, 3));
}

TEST_F(BatchRowsTest, TheOldestKeepTheirRows) {
  for (uint64_t id = 1; id <= 6; ++id) {
    Add(id, RequestPhase::kDecoding).decoding_since = 10 - static_cast<double>(id);
  }
  EXPECT_THAT(NextStep(), ElementsAre(6, 5, 4, 3));
}

TEST_F(BatchRowsTest, RowsBelongToRequestsThatDecodeOrWillSoon) {
  EXPECT_EQ(rows_.NumFree(input_), 4);
  Add(1, RequestPhase::kDecoding);
  Add(2, RequestPhase::kSettling);
  Add(3, RequestPhase::kReturning);
  Add(4, RequestPhase::kDecoding).free_tokens = 0;  // stalled
  Add(5, RequestPhase::kWaiting);
  Add(6, RequestPhase::kSuspended);
  EXPECT_EQ(rows_.NumFree(input_), 1);
}

TEST_F(BatchRowsTest, AMemberOfALaneTakesARowASecondAhead) {
  for (int i = 0; i < 50; ++i) costs_.Observe({.passes = 1, .pass_rows = 1000}, 0.1);
  input_.lanes = {{.max_tokens = 131072, .is_free = false, .members = {{.id = 1, .rows = 1000}}}};
  EXPECT_LT(times_.SecondsLeft(input_.lanes[0]), BatchRows::kAheadSeconds);
  EXPECT_EQ(rows_.NumFree(input_), 3);
  input_.lanes[0].members[0].rows = 20000;
  EXPECT_GT(times_.SecondsLeft(input_.lanes[0]), BatchRows::kAheadSeconds);
  EXPECT_EQ(rows_.NumFree(input_), 4) << "it is read for a long time yet";
}

}  // namespace
}  // namespace retroinfer
