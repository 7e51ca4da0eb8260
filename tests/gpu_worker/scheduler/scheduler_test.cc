// Single plans: each rule by itself.
#include "gpu_worker/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SchedulerTest : public testing::Test {
 protected:
  SchedulerTest() {
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

TEST_F(SchedulerTest, NothingToDoIsAnEmptyPlan) { EXPECT_TRUE(Plan().empty()); }

// What they hold is free, and what they are decides, in the next plan.
TEST_F(SchedulerTest, WhoIsLateOrAbortedEndsBeforeAnythingElseIsPlanned) {
  Add(1, RequestPhase::kDecoding, 500).deadline = 100;
  Add(2, RequestPhase::kWaiting, 500).is_aborted = true;
  Add(3, RequestPhase::kDecoding, 500).deadline = 100.5;
  Add(4, RequestPhase::kReserving, 500).deadline = 99;
  input_.requests.back().is_aborted = true;
  const StepPlan plan = Plan();
  using Reason = StepPlan::EndReason;
  EXPECT_THAT(plan.end,
              ElementsAre(StepPlan::Ending{1, Reason::kLate}, StepPlan::Ending{2, Reason::kAborted},
                          StepPlan::Ending{4, Reason::kLate}));
  EXPECT_THAT(plan.decode, IsEmpty());
  EXPECT_FALSE(plan.empty());
  input_.requests = {input_.requests[2]};
  EXPECT_THAT(Plan().decode, ElementsAre(3));
  input_.aborts_all = true;
  EXPECT_THAT(Plan().end, ElementsAre(StepPlan::Ending{3, Reason::kAborted}));
}

TEST_F(SchedulerTest, APromptThatIsSettledIsDoneWith) {
  Add(1, RequestPhase::kSettling, 500).is_settled = true;
  Add(2, RequestPhase::kSettling, 500);
  Add(3, RequestPhase::kDecoding, 500);
  const StepPlan plan = Plan();
  EXPECT_THAT(plan.finish, ElementsAre(1));
  EXPECT_FALSE(plan.empty());
  input_.requests[0].phase = RequestPhase::kDecoding;
  input_.requests[0].can_decode = true;
  EXPECT_THAT(Plan().finish, IsEmpty());
  EXPECT_THAT(Plan().decode, ElementsAre(1, 3));
}

// It comes back for the next one: no token yet.
TEST_F(SchedulerTest, APartOfAPromptIsReadButDoesNotDecode) {
  Add(1, RequestPhase::kReady, 300).has_more_parts = true;
  Add(2, RequestPhase::kReady, 200);
  const StepPlan plan = Plan();
  ASSERT_EQ(plan.begin.size(), 1u);
  EXPECT_THAT(plan.begin[0].members, ElementsAre(2, 1));
  EXPECT_EQ(plan.passes.size(), 4u);
  EXPECT_THAT(plan.finish, ElementsAre(2));
  EXPECT_THAT(plan.decode, ElementsAre(2));
}

TEST_F(SchedulerTest, ShortPromptsAreReadTogetherAndDecodeAtOnce) {
  Add(1, RequestPhase::kWaiting, 300);
  Add(2, RequestPhase::kWaiting, 200);
  const StepPlan plan = Plan();
  EXPECT_THAT(plan.admit, ElementsAre(2, 1)) << "the shortest first";
  ASSERT_EQ(plan.begin.size(), 1u);
  EXPECT_EQ(plan.begin[0].lane, 1u);
  EXPECT_THAT(plan.begin[0].members, ElementsAre(2, 1));
  ASSERT_EQ(plan.passes.size(), 4u) << "all rows, a layer each";
  EXPECT_EQ(plan.passes[3].layer, 3u);
  EXPECT_EQ(plan.passes[3].num_rows, 500);
  EXPECT_THAT(plan.decode, ElementsAre(2, 1));
}

TEST_F(SchedulerTest, ALongPromptIsReadAloneAndItsLayersWaitForTheBackground) {
  Add(1, RequestPhase::kReady, 20000);
  Add(2, RequestPhase::kReady, 30000);
  const StepPlan plan = Plan();
  ASSERT_EQ(plan.begin.size(), 1u);
  EXPECT_THAT(plan.begin[0].members, ElementsAre(1));
  for (const StepPlan::Pass& pass : plan.passes) EXPECT_LT(pass.layer, 2u);
  EXPECT_THAT(plan.decode, IsEmpty());
}

TEST_F(SchedulerTest, AShortPromptGoesBeforeALongOne) {
  Occupy(0, 1, 100000);
  Add(2, RequestPhase::kReady, 500);
  const StepPlan plan = Plan();
  ASSERT_FALSE(plan.passes.empty());
  EXPECT_EQ(plan.passes[0].lane, 1u);
}

TEST_F(SchedulerTest, APlaceBelongsToOneThatDecodes) {
  for (uint64_t id = 1; id <= 4; ++id) Add(id, RequestPhase::kDecoding, 500);
  Add(5, RequestPhase::kWaiting, 10);
  EXPECT_THAT(Plan().admit, IsEmpty());
  input_.requests[0].phase = RequestPhase::kReserving;  // waits for the store: no batch row
  EXPECT_THAT(Plan().admit, ElementsAre(5));
  // A long prompt does not need one for a long time.
  input_.requests[0].phase = RequestPhase::kDecoding;
  for (int i = 0; i < 50; ++i) scheduler_.costs().Observe({.passes = 1, .pass_rows = 1024}, 0.1);
  Add(6, RequestPhase::kWaiting, 100000);
  EXPECT_THAT(Plan().admit, ElementsAre(6));
}

TEST_F(SchedulerTest, NeverMoreThanABatchDecode) {
  for (uint64_t id = 1; id <= 6; ++id) Add(id, RequestPhase::kDecoding, 500);
  input_.requests[1].can_decode = false;  // its segment is late
  input_.requests[2].goes_live = true;
  const StepPlan plan = Plan();
  EXPECT_THAT(plan.decode, ElementsAre(1, 3, 4, 5));
  EXPECT_THAT(plan.go_live, ElementsAre(3));
}

TEST_F(SchedulerTest, OneThatWaitsForMemoryLetsOthersPassForAWhile) {
  input_.free_dense_blocks = 50;
  Add(1, RequestPhase::kWaiting, 100).dense_blocks = 60;
  Add(2, RequestPhase::kWaiting, 200).dense_blocks = 1;
  EXPECT_THAT(Plan().admit, ElementsAre(2));
  input_.now += Scheduler::kPatience + 0.1;
  EXPECT_THAT(Plan().admit, IsEmpty()) << "what is free is kept";
  input_.free_dense_blocks = 61;
  EXPECT_THAT(Plan().admit, ElementsAre(1, 2)) << "there is room for both";
}

TEST_F(SchedulerTest, OneThatWaitsForTheArenaKeepsTheArenaOnly) {
  Add(1, RequestPhase::kWaiting, 100).wants_extents = true;
  input_.requests[0].arena_is_full = true;
  EXPECT_THAT(Plan().admit, IsEmpty());
  input_.now += Scheduler::kPatience + 0.1;
  Add(2, RequestPhase::kWaiting, 200);
  Add(3, RequestPhase::kWaiting, 200).wants_extents = true;
  EXPECT_THAT(Plan().admit, ElementsAre(2));
  input_.requests[0].arena_is_full = false;
  EXPECT_THAT(Plan().admit, ElementsAre(1, 2)) << "until it has its extents";
  input_.requests[0].phase = RequestPhase::kReady;
  EXPECT_THAT(Plan().admit, ElementsAre(2, 3));
}

TEST_F(SchedulerTest, PrioritiesGoFirstAndWaitingMakesUpForThem) {
  input_.free_table_rows = 1;
  Add(1, RequestPhase::kWaiting, 10).priority = 3;
  Add(2, RequestPhase::kWaiting, 5000);
  EXPECT_THAT(Plan().admit, ElementsAre(2));
  input_.requests[0].arrival = input_.now - 3 * Scheduler::kLevelSeconds - 1;
  EXPECT_THAT(Plan().admit, ElementsAre(1));
}

TEST_F(SchedulerTest, AmongEqualsTheTenantThatGotLeastIsNext) {
  input_.weights = {1, 1};
  Add(1, RequestPhase::kWaiting, 4000);
  Add(2, RequestPhase::kWaiting, 10).tenant = 1;
  EXPECT_EQ(Plan().admit.front(), 2u) << "nobody got anything: the shorter one";
  EXPECT_GT(scheduler_.shares().Served(0), scheduler_.shares().Served(1));
  input_.requests.clear();
  input_.free_table_rows = 1;
  Add(3, RequestPhase::kWaiting, 10);
  Add(4, RequestPhase::kWaiting, 4000).tenant = 1;
  EXPECT_THAT(Plan().admit, ElementsAre(4));
}

TEST_F(SchedulerTest, TheSameInputsGiveTheSamePlans) {
  Scheduler other({.num_layers = 4, .max_rows = 1024, .max_batch = 4});
  for (uint64_t id = 1; id <= 6; ++id)
    Add(id, RequestPhase::kWaiting, 100 * static_cast<int64_t>(id));
  EXPECT_EQ(other.Plan(input_), scheduler_.Plan(input_));
}

}  // namespace
}  // namespace retroinfer
