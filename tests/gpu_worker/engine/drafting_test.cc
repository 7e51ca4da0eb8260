#include "gpu_worker/engine/drafting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace retroinfer {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(DraftingTest, ADraftIsMadeOnceForEachToken) {
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 1, 2, 3};
  Drafting drafting(prompt);
  drafting.Draft(3);
  EXPECT_THAT(drafting.draft(), IsEmpty()) << "nothing is indexed";
  drafting.Index(100);
  drafting.Draft(3);
  EXPECT_THAT(drafting.draft(), ElementsAre(4, 5, 1));
  drafting.Draft(1);
  EXPECT_THAT(drafting.draft(), ElementsAre(4, 5, 1)) << "of the same text";
  drafting.Append(4);
  drafting.Index(100);
  drafting.Draft(2);
  EXPECT_THAT(drafting.draft(), ElementsAre(5, 1));
  drafting.Append(9);
  drafting.Index(100);
  drafting.Draft(2);
  EXPECT_THAT(drafting.draft(), IsEmpty());
}

TEST(DraftingTest, WithAPredictionTheFirstTokensAreDraftedToo) {
  const std::vector<int32_t> prompt = {1, 2}, prediction = {7, 8, 9, 10};
  Drafting drafting(prompt, prediction);
  drafting.Index(100);
  drafting.Draft(8);
  EXPECT_THAT(drafting.draft(), ElementsAre(7, 8, 9, 10));
  drafting.Append(7);
  drafting.Index(100);
  drafting.Draft(8);
  EXPECT_THAT(drafting.draft(), ElementsAre(8, 9, 10));
}

// Whether or not a step had rows for the draft.
TEST(DraftingTest, TheChanceFollowsWhatIsDrawn) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 400; ++i) prompt.push_back(i % 50);
  Drafting drafting(prompt);
  drafting.Index(1000);
  drafting.Draft(8);
  ASSERT_FALSE(drafting.draft().empty());
  const double first = drafting.chance();
  for (int32_t i = 0; i < 30; ++i) {
    drafting.Append(i);  // as it went on before
    drafting.Index(1000);
    drafting.Draft(8);
  }
  const double high = drafting.chance();
  EXPECT_GT(high, first);
  EXPECT_GT(high, 0.95);
  // Matches of one token less than enough for the class: what long ones have shown is not theirs.
  for (int32_t round = 0; round < 30; ++round) {
    for (const int32_t token : {20, 21, 22, 1000 + round}) {
      drafting.Append(token);
      drafting.Index(1000);
      drafting.Draft(8);
    }
  }
  for (const int32_t token : {20, 21, 22}) drafting.Append(token);
  drafting.Index(1000);
  drafting.Draft(8);
  ASSERT_FALSE(drafting.draft().empty());
  EXPECT_LT(drafting.chance(), 0.1) << "short matches were never right";
}

TEST(DraftingTest, AStepThatTriesADraftTeachesAsManyTokensAsItDraws) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 200; ++i) prompt.push_back(i % 50);
  Drafting steps(prompt), one_by_one(prompt);
  for (Drafting* const drafting : {&steps, &one_by_one}) {
    drafting->Index(1000);
    drafting->Draft(8);
  }
  for (int32_t i = 0; i < 6; ++i) {
    steps.Append(i);
    one_by_one.Append(i);
    one_by_one.Index(1000);
    one_by_one.Draft(8);
  }
  EXPECT_DOUBLE_EQ(steps.chance(), one_by_one.chance());
}

}  // namespace
}  // namespace retroinfer
