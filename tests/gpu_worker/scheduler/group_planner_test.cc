// Prompts that begin with the same cached segments: single plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu_worker/scheduler/scheduler.h"

namespace retroinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint32_t kLayers = 4;

class GroupPlannerTest : public testing::Test {
 protected:
  GroupPlannerTest() {
    input_.now = 100;
    input_.lanes = {{.max_tokens = 131072, .members = {}}, {.max_tokens = 8192, .members = {}}};
    input_.weights = {1};
    input_.free_dense_blocks = 1000;
    input_.free_meta_blocks = 1000;
    input_.free_table_rows = 20;
    input_.free_passes = 64;
  }

  // A question of 200 tokens on a text of 100,000, of which all but 1,000 are cached.
  RequestDescription& Question(uint64_t id, RequestPhase phase = RequestPhase::kReady,
                               uint64_t prefix = 7) {
    input_.requests.push_back({.id = id,
                               .phase = phase,
                               .arrival = 99,
                               .prompt_tokens = 100200,
                               .cached_tokens = phase == RequestPhase::kReady ? 99000 : 0,
                               .prefix = prefix,
                               .common_tokens = 100000,
                               .dense_blocks = 1,
                               .asks_store = true});
    return input_.requests.back();
  }
  StepPlan Plan() { return scheduler_.Plan(input_); }
  // As the engine would have described them in the next round.
  void Become(RequestPhase phase) {
    for (RequestDescription& request : input_.requests) request.phase = phase;
  }

  SchedulerInput input_;
  Scheduler scheduler_{{.num_layers = kLayers, .max_rows = 1024, .max_batch = 8}};
};

TEST_F(GroupPlannerTest, QuestionsOnOneTextAreOneGroup) {
  for (uint64_t id = 1; id <= 5; ++id) Question(id);
  const StepPlan plan = Plan();
  ASSERT_EQ(plan.begin.size(), 1u);
  EXPECT_EQ(plan.begin[0].lane, 0u);
  EXPECT_THAT(plan.begin[0].members, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(plan.passes, IsEmpty()) << "its rows are known when it has begun";
}

TEST_F(GroupPlannerTest, QuestionsAreOneGroupAlsoWhereTheReachOfFewRowsSeemsToBeTheCost) {
  // As the fit may have it after questions that were read alone: each reached as far as it read.
  for (int i = 0; i < 200; ++i) {
    scheduler_.costs().Observe({.passes = 1, .pass_rows = 8, .pass_reach = 99000}, 0.010);
    scheduler_.costs().Observe({.passes = 1, .pass_rows = 1024}, 0.001);
    scheduler_.costs().Observe({.passes = 1, .pass_rows = 64}, 0.0007);
  }
  for (uint64_t id = 1; id <= 5; ++id) Question(id);
  const StepPlan plan = Plan();
  ASSERT_EQ(plan.begin.size(), 1u);
  EXPECT_THAT(plan.begin[0].members, ElementsAre(1, 2, 3, 4, 5));
}

TEST_F(GroupPlannerTest, OtherTextsWait) {
  Question(1);
  Question(2, RequestPhase::kReady, 8);
  Question(3);
  Question(4).cached_tokens = 0;  // has found nothing
  const StepPlan plan = Plan();
  ASSERT_EQ(plan.begin.size(), 1u);
  EXPECT_THAT(plan.begin[0].members, ElementsAre(1, 3));
}

TEST_F(GroupPlannerTest, ALongTailIsReadForItself) {
  Question(1);
  Question(2).prompt_tokens = 120000;  // 20,000 rows more for all who wait with it
  const StepPlan plan = Plan();
  ASSERT_EQ(plan.begin.size(), 1u);
  EXPECT_THAT(plan.begin[0].members, ElementsAre(1));
}

TEST_F(GroupPlannerTest, AGroupHasRoomInItsLane) {
  input_.lanes[0].max_tokens = 100200 + 3 * 1200 + 100;  // the text, and what three compute
  for (uint64_t id = 1; id <= 5; ++id) Question(id);
  const StepPlan plan = Plan();
  ASSERT_EQ(plan.begin.size(), 1u);
  EXPECT_EQ(plan.begin[0].members.size(), 3u);
}

TEST_F(GroupPlannerTest, AGroupHasPlacesInTheBatch) {
  for (uint64_t id = 10; id < 15; ++id) {
    input_.requests.push_back({.id = id, .phase = RequestPhase::kDecoding, .can_decode = true});
  }
  for (uint64_t id = 1; id <= 5; ++id) Question(id);
  const StepPlan plan = Plan();
  ASSERT_EQ(plan.begin.size(), 1u);
  EXPECT_EQ(plan.begin[0].members.size(), 3u);
}

TEST_F(GroupPlannerTest, AllThatCanBeReadTogetherAreAdmitted) {
  for (uint64_t id = 1; id <= 5; ++id) Question(id, RequestPhase::kWaiting);
  for (uint64_t id = 11; id <= 15; ++id) Question(id, RequestPhase::kWaiting, id);
  const StepPlan plan = Plan();
  // One for each lane, and one behind them: then only those that begin as one of these does.
  EXPECT_EQ(plan.admit.size(), 5u + 2u);
  EXPECT_THAT(plan.admit, testing::IsSupersetOf({1u, 2u, 3u, 4u, 5u}));
}

TEST_F(GroupPlannerTest, ALoneQuestionDoesNotWait) {
  Question(1);
  EXPECT_EQ(Plan().begin.size(), 1u);
}

// Others were there a moment ago and will come again.
TEST_F(GroupPlannerTest, TheFirstOfSeveralWaitsForTheOthersForAShortTime) {
  for (uint64_t id = 1; id <= 3; ++id) Question(id);
  EXPECT_EQ(Plan().begin.size(), 1u);
  input_.requests.clear();
  input_.now += 1;
  Question(4);
  EXPECT_THAT(Plan().begin, IsEmpty());
  Question(5);
  EXPECT_THAT(Plan().begin, IsEmpty());
  Question(6);
  const StepPlan plan = Plan();
  ASSERT_EQ(plan.begin.size(), 1u) << "all that were there";
  EXPECT_THAT(plan.begin[0].members, ElementsAre(4, 5, 6));

  input_.requests.clear();
  input_.now += 1;
  Question(7);
  EXPECT_THAT(Plan().begin, IsEmpty());
  input_.now += 0.05;  // no longer than the target between two tokens
  EXPECT_EQ(Plan().begin.size(), 1u);

  input_.requests.clear();
  input_.now += 30;
  Question(8);
  EXPECT_EQ(Plan().begin.size(), 1u) << "they are forgotten";
}

}  // namespace
}  // namespace retroinfer
