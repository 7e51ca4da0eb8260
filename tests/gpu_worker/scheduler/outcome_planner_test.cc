// What has come of what was begun: planned first, and by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu_worker/scheduler/scheduler.h"

namespace retroinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Reason = StepPlan::EndReason;

class OutcomePlannerTest : public testing::Test {
 protected:
  OutcomePlannerTest() {
    input_.now = 100;
    input_.lanes = {{.max_tokens = 131072, .members = {}}, {.max_tokens = 8192, .members = {}}};
    input_.weights = {1};
    input_.free_dense_blocks = 1000;
    input_.free_meta_blocks = 1000;
    input_.free_table_rows = 10;
    input_.free_passes = 64;
    Add(9, RequestPhase::kDecoding);  // has nothing to do with it, and waits for it
  }

  RequestDescription& Add(uint64_t id, RequestPhase phase) {
    input_.requests.push_back({.id = id,
                               .phase = phase,
                               .arrival = 100,
                               .prompt_tokens = 500,
                               .can_decode = phase == RequestPhase::kDecoding});
    return input_.requests.back();
  }
  StepPlan Plan() { return scheduler_.Plan(input_); }

  SchedulerInput input_;
  Scheduler scheduler_{{.num_layers = 4, .max_rows = 1024, .max_batch = 4}};
};

TEST_F(OutcomePlannerTest, WhatTheStoreHasGrantedIsTakenBeforeAnythingElseIsPlanned) {
  Add(1, RequestPhase::kReserving);
  EXPECT_THAT(Plan().decode, ElementsAre(9)) << "it waits alone";
  input_.requests.back().answer = StoreAnswer::kGranted;
  const StepPlan plan = Plan();
  EXPECT_THAT(plan.grant, ElementsAre(1));
  EXPECT_THAT(plan.decode, IsEmpty());
  EXPECT_THAT(plan.begin, IsEmpty());
  input_.requests.back().phase = RequestPhase::kReady;
  input_.requests.back().answer = StoreAnswer::kNone;
  EXPECT_THAT(Plan().decode, ElementsAre(9));
}

TEST_F(OutcomePlannerTest, AFullArenaIsWaitedForWhileOthersHaveSomeOfIt) {
  RequestDescription& request = Add(1, RequestPhase::kReserving);
  request.answer = StoreAnswer::kArenaFull;
  request.arena_may_free_pages = true;
  EXPECT_THAT(Plan().put_back, ElementsAre(1));
  EXPECT_THAT(Plan().end, IsEmpty());
  request.arena_may_free_pages = false;
  EXPECT_THAT(Plan().put_back, IsEmpty());
  EXPECT_THAT(Plan().end, ElementsAre(StepPlan::Ending{1, Reason::kArenaFull}));
}

TEST_F(OutcomePlannerTest, ACopyThatIsDoneChangesWhereItsRequestIs) {
  Add(1, RequestPhase::kLeaving);
  Add(2, RequestPhase::kReturning);
  EXPECT_THAT(Plan().decode, ElementsAre(9));
  input_.requests[1].is_copied = input_.requests[2].is_copied = true;
  const StepPlan plan = Plan();
  EXPECT_THAT(plan.leave, ElementsAre(1));
  EXPECT_THAT(plan.rejoin, ElementsAre(2));
  EXPECT_THAT(plan.decode, IsEmpty());
}

TEST_F(OutcomePlannerTest, WhatHasFailedEndsWhateverElseItIs) {
  RequestDescription& request = Add(1, RequestPhase::kReserving);
  request.has_failed = true;
  request.answer = StoreAnswer::kGranted;
  request.is_aborted = true;
  request.deadline = 50;
  const StepPlan plan = Plan();
  EXPECT_THAT(plan.end, ElementsAre(StepPlan::Ending{1, Reason::kFailed}));
  EXPECT_THAT(plan.grant, IsEmpty());
}

TEST_F(OutcomePlannerTest, WhoEndsOrIsLateGetsNothing) {
  RequestDescription& request = Add(1, RequestPhase::kReserving);
  request.answer = StoreAnswer::kGranted;
  request.is_aborted = true;
  EXPECT_THAT(Plan().grant, IsEmpty());
  EXPECT_THAT(Plan().end, ElementsAre(StepPlan::Ending{1, Reason::kAborted}));
}

// Twice: when it comes, at best, and when it is known what is cached.
TEST_F(OutcomePlannerTest, WhoseFirstTokenCannotBeInTimeIsRefused) {
  RequestDescription& request = Add(1, RequestPhase::kWaiting);
  request.prompt_tokens = 100'000;
  request.deadline = 101;
  request.is_new = true;
  EXPECT_THAT(Plan().end, IsEmpty()) << "nothing is known of costs yet";
  for (int i = 0; i < 50; ++i) input_.measured.push_back({{.passes = 1, .pass_rows = 1000}, 0.01});
  ASSERT_FALSE(scheduler_.knows_costs());
  const StepPlan plan = Plan();  // 100 passes of four layers: 4 seconds and more
  input_.measured.clear();
  ASSERT_EQ(plan.end.size(), 1u);
  EXPECT_EQ(plan.end[0].reason, Reason::kUnreachable);
  EXPECT_GT(plan.end[0].seconds, 2);
  EXPECT_LT(plan.end[0].seconds, scheduler_.EarliestFirstToken(input_, request));
  request.nameable_tokens = 99'000;
  EXPECT_THAT(Plan().end, IsEmpty()) << "nearly all of it may be cached";
  request.nameable_tokens = 0;
  request.is_new = false;
  EXPECT_THAT(Plan().end, IsEmpty()) << "it is asked once";
  request.phase = RequestPhase::kReserving;
  EXPECT_THAT(Plan().end, IsEmpty());
  request.answer = StoreAnswer::kGranted;
  request.cached_tokens = 99'000;
  EXPECT_THAT(Plan().grant, ElementsAre(1));
  request.cached_tokens = 4096;
  EXPECT_EQ(Plan().end.size(), 1u);
  EXPECT_THAT(Plan().grant, IsEmpty());
  request.deadline = 106;
  EXPECT_THAT(Plan().grant, ElementsAre(1));
}

TEST_F(OutcomePlannerTest, WhatNobodyUsesIsLetGoBesideTheRest) {
  input_.unused = {4, 5};
  StepPlan plan = Plan();
  EXPECT_THAT(plan.let_go, ElementsAre(4, 5));
  EXPECT_THAT(plan.decode, ElementsAre(9));
  Add(1, RequestPhase::kLeaving).is_copied = true;
  plan = Plan();
  EXPECT_THAT(plan.leave, ElementsAre(1));
  EXPECT_THAT(plan.let_go, ElementsAre(4, 5));
}

TEST_F(OutcomePlannerTest, WithoutRequestsThePlanIsEmpty) {
  input_.requests.clear();
  EXPECT_TRUE(Plan().empty());
}

TEST_F(OutcomePlannerTest, CostsAreLearnedAndForgottenAsDescribed) {
  const Work pass{.passes = 1, .pass_rows = 1000};
  const double guessed = scheduler_.costs().Seconds(pass);
  for (int i = 0; i < 50; ++i) input_.measured.push_back({pass, 0.5});
  Plan();
  EXPECT_NEAR(scheduler_.costs().Seconds(pass), 0.5, 0.05);
  input_.measured.clear();
  input_.forgets_costs = true;
  Plan();
  EXPECT_EQ(scheduler_.costs().Seconds(pass), guessed);
}

TEST_F(OutcomePlannerTest, WhoAsksTheStoreIsInThePlan) {
  RequestDescription& request = Add(1, RequestPhase::kWaiting);
  request.asks_store = true;
  Add(2, RequestPhase::kWaiting);
  const StepPlan plan = Plan();
  EXPECT_EQ(plan.admit.size(), 2u);
  EXPECT_THAT(plan.ask, ElementsAre(1));
}

}  // namespace
}  // namespace retroinfer
