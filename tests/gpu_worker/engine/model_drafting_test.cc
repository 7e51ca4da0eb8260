#include "gpu_worker/engine/model_drafting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr double kFirst = DraftModelRecord::kFirstChance;

TEST(ModelDraftingTest, TokensUpToTheFirstWrongOneCount) {
  DraftModelRecord of_all;
  ModelDrafting drafting(of_all);
  EXPECT_DOUBLE_EQ(drafting.chance(), kFirst);
  drafting.Take({1, 2, 3});
  EXPECT_THAT(drafting.draft(), ElementsAre(1, 2, 3));
  drafting.Append(1);
  const double up = drafting.chance();
  EXPECT_GT(up, kFirst);
  drafting.Append(9);
  const double down = drafting.chance();
  EXPECT_LT(down, up);
  drafting.Append(3);
  EXPECT_DOUBLE_EQ(drafting.chance(), down) << "said of another text";
  drafting.Clear();
  EXPECT_THAT(drafting.draft(), IsEmpty());
}

TEST(ModelDraftingTest, WhatIsBehindTheDraftSaysNothing) {
  DraftModelRecord of_all;
  ModelDrafting drafting(of_all);
  drafting.Take({1});
  drafting.Append(1);
  const double chance = drafting.chance();
  drafting.Append(2);
  EXPECT_DOUBLE_EQ(drafting.chance(), chance);
}

TEST(ModelDraftingTest, AModelThatWasWrongIsAskedAgainMuchLater) {
  DraftModelRecord of_all;
  ModelDrafting drafting(of_all);
  for (int i = 0; i < 30; ++i) {
    drafting.Take({1});
    drafting.Append(2);
  }
  const double low = drafting.chance();
  EXPECT_LT(low, 0.1);
  drafting.Clear();
  for (int i = 0; i < 100; ++i) drafting.Append(2);
  EXPECT_LT(drafting.chance(), 0.2);
  for (int i = 0; i < 1500; ++i) drafting.Append(2);
  EXPECT_GT(drafting.chance(), 0.55);
}

TEST(ModelDraftingTest, TokensSinceTheModelWasAskedAreCounted) {
  DraftModelRecord of_all;
  ModelDrafting first(of_all), second(of_all);
  EXPECT_GT(of_all.untried, 100'000);
  first.Take({1});
  EXPECT_EQ(of_all.untried, 0);
  first.Clear();
  for (int i = 0; i < 5; ++i) first.Append(1);
  second.Append(1);
  EXPECT_EQ(of_all.untried, 6);
  second.Take({1});
  EXPECT_EQ(of_all.untried, 0);
}

TEST(ModelDraftingTest, NewRequestsBeginWhereOthersAre) {
  DraftModelRecord of_all;
  ModelDrafting first(of_all);
  for (int i = 0; i < 300; ++i) {
    first.Take({1});
    first.Append(1);
  }
  const ModelDrafting second(of_all);
  EXPECT_GT(second.chance(), 0.95);
  for (int i = 0; i < 300; ++i) {
    first.Take({1});
    first.Append(2);
  }
  const ModelDrafting third(of_all);
  EXPECT_LT(third.chance(), 0.1);
  // Requests that never try the model let others try it again.
  for (int i = 0; i < 200; ++i) ModelDrafting{of_all};
  EXPECT_GT(of_all.chance, 0.5);
}

}  // namespace
}  // namespace retroinfer
