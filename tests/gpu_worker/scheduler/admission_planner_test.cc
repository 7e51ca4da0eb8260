// Single plans: who gets memory to begin, who gets more, and who waits for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu_worker/scheduler/scheduler.h"

namespace retroinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class AdmissionPlannerTest : public testing::Test {
 protected:
  AdmissionPlannerTest() {
    input_.now = 100;
    input_.lanes = {{.max_tokens = 131072, .members = {}}, {.max_tokens = 8192, .members = {}}};
    input_.weights = {1};
    input_.free_table_rows = 10;
    input_.free_suspended_blocks = 1000;
    input_.free_passes = 64;
  }

  // Those with lower numbers decode longer.
  RequestDescription& AddDecoding(uint64_t id, int32_t held, int32_t more, int32_t asked,
                                  int64_t room) {
    input_.requests.push_back({.id = id,
                               .phase = RequestPhase::kDecoding,
                               .prompt_tokens = 500,
                               .context = 600,
                               .dense_blocks = held,
                               .more_dense_blocks = more,
                               .asked_dense_blocks = asked,
                               .free_tokens = room,
                               .takes_in_order = true,
                               .can_decode = true,
                               .decoding_since = static_cast<double>(id),
                               .can_suspend = true,
                               .suspended_blocks = held,
                               .tokens_left = 1000});
    return input_.requests.back();
  }
  RequestDescription& AddWaiting(uint64_t id, int32_t first, int32_t more) {
    input_.requests.push_back({.id = id,
                               .arrival = 99,
                               .prompt_tokens = 500,
                               .dense_blocks = first,
                               .more_dense_blocks = more,
                               .takes_in_order = true,
                               .tokens_left = 1000});
    return input_.requests.back();
  }
  // Requests like those above that ended at once: expectations keep nobody waiting any more.
  void LearnThatAllAreShort() {
    for (uint64_t id = 1000; id < 1010; ++id) {
      AddDecoding(id, 0, 0, 0, 100);
      Plan();
      input_.requests.clear();
      Plan();
    }
  }
  StepPlan Plan() { return scheduler_.Plan(input_); }

  SchedulerInput input_;
  Scheduler scheduler_{{.num_layers = 4, .max_rows = 1024, .max_batch = 4}};
};

TEST_F(AdmissionPlannerTest, WhoAsksGetsMemoryBeforeItIsNeeded) {
  input_.free_dense_blocks = 10;
  AddDecoding(1, 5, 5, 1, 40);
  AddDecoding(2, 5, 5, 0, 100);
  const StepPlan plan = Plan();
  EXPECT_THAT(plan.grow, ElementsAre(1));
  EXPECT_THAT(plan.decode, UnorderedElementsAre(1, 2));
}

TEST_F(AdmissionPlannerTest, WhoGetsNoneIsLeftOutOfSteps) {
  input_.free_dense_blocks = 5;
  AddDecoding(1, 5, 5, 1, 0);
  AddDecoding(2, 5, 5, 1, 0);
  AddDecoding(3, 5, 5, 1, 7);  // still has room
  StepPlan plan = Plan();
  EXPECT_THAT(plan.grow, ElementsAre(1)) << "who decodes longest";
  EXPECT_THAT(plan.decode, UnorderedElementsAre(1, 3));
  // It ends.
  input_.requests.erase(input_.requests.begin());
  input_.free_dense_blocks = 10;
  plan = Plan();
  EXPECT_THAT(plan.grow, ElementsAre(2, 3));
  EXPECT_THAT(plan.decode, UnorderedElementsAre(2, 3));
}

TEST_F(AdmissionPlannerTest, AHigherClassGetsMemoryFirst) {
  input_.free_dense_blocks = 5;
  AddDecoding(1, 5, 5, 1, 0).priority = 2;
  AddDecoding(2, 5, 5, 1, 0).priority = 1;
  EXPECT_THAT(Plan().grow, ElementsAre(2));
}

// Another request has the batch row meanwhile, and may have to end first.
TEST_F(AdmissionPlannerTest, WhoWaitsForMemoryHasNoPlace) {
  input_.free_dense_blocks = 5;
  AddDecoding(1, 5, 5, 0, 100);
  for (uint64_t id = 2; id <= 4; ++id) AddDecoding(id, 5, 30, 1, 0);
  input_.requests.push_back({.id = 9,
                             .phase = RequestPhase::kReady,
                             .prompt_tokens = 500,
                             .dense_blocks = 5,
                             .takes_in_order = true});
  const StepPlan plan = Plan();
  EXPECT_THAT(plan.grow, IsEmpty());
  ASSERT_EQ(plan.begin.size(), 1u);
  EXPECT_THAT(plan.begin[0].members, ElementsAre(9));
}

TEST_F(AdmissionPlannerTest, NobodyBeginsWhileOneHasWaitedForMemoryTooLong) {
  LearnThatAllAreShort();
  input_.free_dense_blocks = 5;
  AddDecoding(1, 5, 5, 0, 100);
  AddDecoding(2, 5, 6, 1, 0);
  EXPECT_THAT(Plan().grow, IsEmpty());
  AddWaiting(8, 0, 0);
  AddWaiting(9, 1, 0);
  EXPECT_THAT(Plan().admit, UnorderedElementsAre(8, 9)) << "it could end before the others";
  input_.now += Scheduler::kPatience;
  EXPECT_THAT(Plan().admit, ElementsAre(8)) << "who needs no memory takes none";
  // A higher class does not wait.
  input_.requests.back().priority = -1;
  EXPECT_THAT(Plan().admit, UnorderedElementsAre(8, 9));
}

TEST_F(AdmissionPlannerTest, OneThatCouldNotEndDoesNotBegin) {
  input_.free_dense_blocks = 12;
  AddDecoding(1, 4, 8, 0, 100);
  AddWaiting(9, 5, 0);
  EXPECT_THAT(Plan().admit, IsEmpty());
  input_.requests[1].dense_blocks = 4;
  EXPECT_THAT(Plan().admit, ElementsAre(9));
}

// Whom the memory of a lower class would help goes on with it.
TEST_F(AdmissionPlannerTest, ALowerClassIsPreemptedForARequestThatWaitsForMemory) {
  Scheduler scheduler({.num_layers = 4, .max_rows = 1024, .max_batch = 4, .preempts = true});
  input_.free_dense_blocks = 3;
  AddDecoding(1, 5, 5, 1, 0).priority = 0;
  AddDecoding(2, 5, 3, 0, 100).priority = 2;
  AddDecoding(3, 5, 3, 0, 100).priority = 1;
  for (RequestDescription& request : input_.requests) request.more_dense_blocks = 30;
  EXPECT_THAT(scheduler.Plan(input_).suspend, IsEmpty()) << "it might get some in a moment";
  input_.now += 0.1;
  EXPECT_THAT(scheduler.Plan(input_).suspend, IsEmpty()) << "all of them are not enough";
  input_.requests[0].more_dense_blocks = 8;
  input_.requests[1].more_dense_blocks = 9;
  const StepPlan plan = scheduler.Plan(input_);
  EXPECT_THAT(plan.suspend, ElementsAre(2)) << "8 blocks let the first one end";
  // It gets its block at once, since the others are sure to come.
  EXPECT_THAT(plan.grow, ElementsAre(1));
  EXPECT_THAT(plan.decode, UnorderedElementsAre(1, 3));
}

// --- Past one that is blocked

TEST_F(AdmissionPlannerTest, WhoNeedsNothingOfWhatTheBlockedOneLacksPasses) {
  input_.free_dense_blocks = 100;
  input_.free_meta_blocks = 2;
  AddDecoding(1, 5, 0, 0, 100).meta_blocks = 30;
  RequestDescription& blocked = AddWaiting(2, 5, 0);
  blocked.meta_blocks = 1;
  blocked.more_meta_blocks = 29;
  EXPECT_THAT(Plan().admit, IsEmpty());
  input_.now += Scheduler::kPatience;
  AddWaiting(3, 1, 0);
  AddWaiting(4, 1, 0).meta_blocks = 1;
  AddWaiting(5, 1, 0).meta_blocks = 2;
  // When the first one has ended there are 32.
  EXPECT_THAT(Plan().admit, ElementsAre(3, 4));
}

// The same where it waits for extents, too, which none of them needs.
TEST_F(AdmissionPlannerTest, WhoNeedsNoExtentsPassesOneThatLacksThemAndMore) {
  input_.free_dense_blocks = 20;
  RequestDescription& holder = AddDecoding(1, 5, 0, 0, 100);
  holder.meta_blocks = 30;
  holder.wants_extents = true;
  RequestDescription& blocked = AddWaiting(2, 15, 0);
  blocked.meta_blocks = 30;
  blocked.wants_extents = blocked.arena_is_full = true;
  EXPECT_THAT(Plan().admit, IsEmpty());
  input_.now += Scheduler::kPatience;
  AddWaiting(3, 6, 4);
  AddWaiting(4, 1, 0).wants_extents = true;
  AddWaiting(5, 1, 0);
  EXPECT_THAT(Plan().admit, ElementsAre(3)) << "25 in all, of which 15 are the blocked one's";
}

TEST_F(AdmissionPlannerTest, WhoPassesLeavesWhatIsNeededWhenTheFirstHaveEnded) {
  LearnThatAllAreShort();
  input_.free_dense_blocks = 20;
  RequestDescription& answer = AddDecoding(1, 60, 0, 0, 100);
  answer.tokens_left = 30000;
  answer.length_is_known = true;
  AddDecoding(2, 20, 0, 0, 100);
  AddWaiting(3, 30, 0);
  EXPECT_THAT(Plan().admit, IsEmpty());
  input_.now += Scheduler::kPatience;
  AddWaiting(4, 11, 0);
  AddWaiting(5, 10, 0);
  AddWaiting(6, 1, 0);
  EXPECT_THAT(Plan().admit, ElementsAre(5)) << "40 are free when the second one has ended";
  // Those who passed are not waited for.
  input_.requests.erase(input_.requests.begin() + 4);
  AddDecoding(5, 10, 0, 0, 100);
  input_.free_dense_blocks = 10;
  EXPECT_THAT(Plan().admit, IsEmpty());
  // The second one ends.
  input_.requests.erase(input_.requests.begin() + 1);
  input_.free_dense_blocks = 30;
  EXPECT_THAT(Plan().admit, ElementsAre(3));
}

TEST_F(AdmissionPlannerTest, TheLastRowIsKeptForTheBlockedOneAlone) {
  input_.free_dense_blocks = 100;
  input_.free_table_rows = 0;
  AddDecoding(1, 5, 0, 0, 100);
  AddWaiting(2, 5, 0);
  EXPECT_THAT(Plan().admit, IsEmpty());
  input_.now += Scheduler::kPatience;
  AddWaiting(3, 1, 0);
  input_.free_table_rows = 1;
  EXPECT_THAT(Plan().admit, ElementsAre(2));
}

// An answer of the store that says no does not begin its patience anew, and whoever wants extents
// waits until it has its own.
TEST_F(AdmissionPlannerTest, WhoAsksForExtentsInVainHasThemKept) {
  input_.free_dense_blocks = 100;
  RequestDescription& blocked = AddWaiting(2, 5, 0);
  blocked.wants_extents = blocked.asks_store = blocked.arena_is_full = true;
  AddWaiting(3, 1, 0).wants_extents = true;
  EXPECT_THAT(Plan().admit, ElementsAre(3)) << "it has patience";
  input_.requests.pop_back();
  input_.now += Scheduler::kPatience;
  // Something was given back: it asks again.
  input_.requests[0].arena_is_full = false;
  EXPECT_THAT(Plan().admit, ElementsAre(2));
  AddWaiting(4, 1, 0).wants_extents = true;
  AddWaiting(5, 1, 0);
  input_.requests[0].phase = RequestPhase::kReserving;
  EXPECT_THAT(Plan().admit, ElementsAre(5)) << "others might have its answer";
  input_.requests.pop_back();
  input_.requests[0].phase = RequestPhase::kWaiting;
  input_.requests[0].arena_is_full = true;
  EXPECT_THAT(Plan().admit, IsEmpty());
  // Again, but this time it lacks memory.
  input_.requests[0].arena_is_full = false;
  input_.free_dense_blocks = 4;
  EXPECT_THAT(Plan().admit, IsEmpty()) << "extents are kept as well";
  input_.free_dense_blocks = 100;
  EXPECT_THAT(Plan().admit, ElementsAre(2));
  input_.requests[0].phase = RequestPhase::kReady;
  EXPECT_THAT(Plan().admit, ElementsAre(4));
}

TEST_F(AdmissionPlannerTest, WhoTakesOtherMemoryBeginsWhileOneHasWaitedForMemoryTooLong) {
  LearnThatAllAreShort();
  input_.free_dense_blocks = 100;
  AddDecoding(1, 5, 0, 0, 100).meta_blocks = 2;
  RequestDescription& stalled = AddDecoding(2, 5, 0, 0, 0);
  stalled.asked_meta_blocks = stalled.more_meta_blocks = 1;
  EXPECT_THAT(Plan().grow, IsEmpty());
  input_.now += Scheduler::kPatience;
  AddWaiting(8, 1, 0);
  AddWaiting(9, 1, 0).meta_blocks = 1;
  EXPECT_THAT(Plan().admit, ElementsAre(8));
}

}  // namespace
}  // namespace retroinfer
