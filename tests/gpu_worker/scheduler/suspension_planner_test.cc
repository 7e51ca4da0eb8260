// Single plans: which requests are suspended for which, and when none is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu_worker/scheduler/scheduler.h"

namespace retroinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class SuspensionPlannerTest : public testing::Test {
 protected:
  SuspensionPlannerTest() {
    input_.now = 100;
    input_.lanes = {{.max_tokens = 131072, .members = {}}, {.max_tokens = 8192, .members = {}}};
    input_.weights = {1, 1};
    input_.free_dense_blocks = 1000;
    input_.free_meta_blocks = 1000;
    input_.free_table_rows = 10;
    input_.free_suspended_blocks = 100;
    input_.free_passes = 64;
  }

  RequestDescription& AddDecoding(uint64_t id, int32_t priority) {
    input_.requests.push_back({.id = id,
                               .phase = RequestPhase::kDecoding,
                               .arrival = 50,
                               .priority = priority,
                               .prompt_tokens = 500,
                               .context = 600,
                               .dense_blocks = 10,
                               .takes_in_order = true,
                               .can_decode = true,
                               .decoding_since = 60,
                               .can_suspend = true,
                               .suspended_blocks = 8,
                               .resident_since = 60,
                               .tokens_left = 1000});
    return input_.requests.back();
  }
  RequestDescription& AddWaiting(uint64_t id, int32_t priority) {
    input_.requests.push_back({.id = id,
                               .phase = RequestPhase::kWaiting,
                               .arrival = 99,
                               .priority = priority,
                               .prompt_tokens = 500,
                               .dense_blocks = 10,
                               .takes_in_order = true});
    return input_.requests.back();
  }
  void FillBatch(int32_t priority) {
    for (uint64_t id = 1; id <= 3; ++id) AddDecoding(id, priority);
  }
  RequestDescription& Of(uint64_t id) {
    for (RequestDescription& request : input_.requests) {
      if (request.id == id) return request;
    }
    std::abort();
  }
  StepPlan Plan() { return scheduler_.Plan(input_); }

  SchedulerInput input_;
  Scheduler scheduler_{{.num_layers = 4, .max_rows = 1024, .max_batch = 3, .preempts = true}};
};

TEST_F(SuspensionPlannerTest, TheLowestClassGivesItsPlace) {
  FillBatch(1);
  Of(2).priority = 3;
  AddWaiting(9, 0);
  const StepPlan plan = Plan();
  EXPECT_THAT(plan.suspend, ElementsAre(2));
  EXPECT_THAT(plan.decode, UnorderedElementsAre(1, 3));
  EXPECT_THAT(plan.admit, IsEmpty());
  // The batch row is free as soon as the suspension begins.
  Of(2).phase = RequestPhase::kLeaving;
  const StepPlan next = Plan();
  EXPECT_THAT(next.suspend, IsEmpty());
  EXPECT_THAT(next.admit, ElementsAre(9));
}

TEST_F(SuspensionPlannerTest, NobodyDoesForEqualsOrWithoutTheOption) {
  FillBatch(1);
  AddWaiting(9, 1);
  EXPECT_THAT(Plan().suspend, IsEmpty());
  Of(9).priority = 0;
  Scheduler without({.num_layers = 4, .max_rows = 1024, .max_batch = 3});
  EXPECT_THAT(without.Plan(input_).suspend, IsEmpty());
  EXPECT_THAT(Plan().suspend.size(), 1u);
}

TEST_F(SuspensionPlannerTest, WhoJustCameWaitsForAMoment) {
  FillBatch(1);
  AddWaiting(9, 0).arrival = input_.now - 0.01;
  EXPECT_THAT(Plan().suspend, IsEmpty());
  input_.now += 0.1;
  EXPECT_THAT(Plan().suspend.size(), 1u);
}

TEST_F(SuspensionPlannerTest, WhatCannotBeMovedStays) {
  FillBatch(1);
  AddWaiting(9, 0);
  Of(1).can_suspend = false;
  Of(2).tokens_left = 3;
  Of(3).suspended_blocks = 101;  // more than the host has
  EXPECT_THAT(Plan().suspend, IsEmpty());
  Of(3).suspended_blocks = 100;
  EXPECT_THAT(Plan().suspend, ElementsAre(3));
}

TEST_F(SuspensionPlannerTest, OneThatIsBackStaysForAWhileAndLongerEachTime) {
  FillBatch(1);
  AddWaiting(9, 0);
  for (uint64_t id = 1; id <= 3; ++id) {
    Of(id).num_suspensions = 3;
    Of(id).resident_since = input_.now - 3 * Scheduler::kLeastStay + 0.1;
  }
  EXPECT_THAT(Plan().suspend, IsEmpty());
  Of(2).resident_since -= 0.2;
  EXPECT_THAT(Plan().suspend, ElementsAre(2));
  Of(2).num_suspensions = Scheduler::kMaxSuspensions;
  Of(2).resident_since = 0;
  EXPECT_THAT(Plan().suspend, IsEmpty());
}

TEST_F(SuspensionPlannerTest, TheCheapestOfEqualsGoesAndAfterThatTheOneWithMostToCome) {
  FillBatch(1);
  AddWaiting(9, 0);
  Of(3).suspended_blocks = 7;
  EXPECT_THAT(Plan().suspend, ElementsAre(3));
  Of(3).suspended_blocks = 8;
  Of(2).tokens_left = 1001;
  EXPECT_THAT(Plan().suspend, ElementsAre(2));
  Of(2).num_suspensions = 1;  // it has done so before
  EXPECT_THAT(Plan().suspend, ElementsAre(1));
}

TEST_F(SuspensionPlannerTest, AsManyAsNeededGiveTheirMemoryOrNobody) {
  AddDecoding(1, 1).dense_blocks = 10;
  AddDecoding(2, 1).dense_blocks = 30;
  AddWaiting(9, 0).dense_blocks = 45;
  input_.free_dense_blocks = 6;
  EXPECT_THAT(Plan().suspend, UnorderedElementsAre(1, 2));
  Of(9).dense_blocks = 47;
  EXPECT_THAT(Plan().suspend, IsEmpty());
  Of(9).dense_blocks = 36;
  EXPECT_THAT(Plan().suspend, ElementsAre(2)) << "the first one is not needed";
}

TEST_F(SuspensionPlannerTest, WhatLeavesAlreadyIsCounted) {
  AddDecoding(1, 1).phase = RequestPhase::kLeaving;
  AddDecoding(2, 1);
  AddWaiting(9, 0).dense_blocks = 12;
  input_.free_dense_blocks = 2;
  EXPECT_THAT(Plan().suspend, IsEmpty());
  Of(9).dense_blocks = 13;
  EXPECT_THAT(Plan().suspend, ElementsAre(2));
}

TEST_F(SuspensionPlannerTest, ALongPromptGetsNoMemoryBeforeItCouldBeRead) {
  AddDecoding(1, 1);
  RequestDescription& waiting = AddWaiting(9, 0);
  waiting.prompt_tokens = 50000;
  input_.free_dense_blocks = 5;
  for (LaneDescription& lane : input_.lanes) lane.is_free = false;
  AddWaiting(8, 0).prompt_tokens = 50000;
  Of(8).phase = RequestPhase::kReady;
  EXPECT_THAT(Plan().suspend, IsEmpty());
  input_.lanes[0].is_free = true;
  EXPECT_THAT(Plan().suspend, ElementsAre(1));
}

TEST_F(SuspensionPlannerTest, TheArenaIsNotFreedByThat) {
  FillBatch(1);
  RequestDescription& waiting = AddWaiting(9, 0);
  waiting.wants_extents = waiting.arena_is_full = true;
  EXPECT_THAT(Plan().suspend, IsEmpty());
}

TEST_F(SuspensionPlannerTest, WhoIsAwayComesBackBeforeThoseWhoHaveNotBegun) {
  AddDecoding(1, 1);
  AddDecoding(2, 1);
  AddDecoding(3, 1).phase = RequestPhase::kSuspended;
  AddWaiting(4, 1);
  const StepPlan plan = Plan();
  EXPECT_THAT(plan.resume, ElementsAre(3));
  EXPECT_THAT(plan.begin, IsEmpty()) << "the batch row is taken";
  EXPECT_THAT(plan.decode, UnorderedElementsAre(1, 2));
}

// Else one would wait for extents that the other holds, and that one for memory.
TEST_F(SuspensionPlannerTest, WhoWaitsForTheArenaKeepsNoMemoryFromThoseWhoAreAway) {
  RequestDescription& large = AddWaiting(1, 1);
  large.dense_blocks = 1000;
  large.wants_extents = true;
  large.arena_is_full = true;
  AddDecoding(2, 1).phase = RequestPhase::kSuspended;
  Plan();
  input_.now += Scheduler::kPatience + 1;
  EXPECT_THAT(Plan().resume, ElementsAre(2));
}

TEST_F(SuspensionPlannerTest, OfOneClassTheTenantThatGotFarMoreGives) {
  FillBatch(1);
  AddWaiting(9, 1).tenant = 1;
  // Tenant 0 gets three tokens a step.
  int steps = 0;
  while (Plan().suspend.empty() && steps < 10000) ++steps;
  EXPECT_GT(steps, 1000);
  EXPECT_LT(steps, 5000);
}

}  // namespace
}  // namespace retroinfer
