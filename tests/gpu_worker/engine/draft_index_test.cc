#include "gpu_worker/engine/draft_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

namespace retroinfer {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kAll = std::numeric_limits<int64_t>::max() / 2;

class DraftIndexTest : public testing::Test {
 protected:
  // What the index drafts behind the prompt and the answer.
  std::vector<int32_t> Draft(const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer,
                             int64_t count, const std::vector<int32_t>& prediction = {}) {
    DraftIndex index(prompt, prediction);
    for (const int32_t token : answer) index.Append(token);
    index.Index(kAll);
    std::vector<int32_t> draft;
    const auto match = index.Find();
    if (!match.has_value()) return draft;
    length_ = match->length;
    index.Read(*match, count, draft);
    return draft;
  }

  int64_t length_ = 0;
};

TEST_F(DraftIndexTest, WhatFollowedTheLongestMatchIsTheDraft) {
  EXPECT_THAT(Draft({9, 1, 2, 3, 4, 5, 8, 1, 2, 3, 6, 7}, {9, 1, 2, 3}, 2), ElementsAre(4, 5));
  EXPECT_EQ(length_, 4);
}

TEST_F(DraftIndexTest, AnAnswerIsExpectedToBeThePrediction) {
  const std::vector<int32_t> prediction = {1, 2, 3, 4, 5, 6, 7};
  EXPECT_THAT(Draft({8, 9}, {}, 3, prediction), ElementsAre(1, 2, 3));
  EXPECT_THAT(Draft({8, 9}, {1, 2}, 3, prediction), ElementsAre(3, 4, 5));
  EXPECT_THAT(Draft({8, 9}, {1, 2, 3, 4, 5}, 8, prediction), ElementsAre(6, 7)) << "its end";
}

TEST_F(DraftIndexTest, AnAnswerThatLeavesThePredictionFindsItAgain) {
  const std::vector<int32_t> prediction = {1, 2, 3, 4, 5, 6, 7};
  EXPECT_THAT(Draft({8, 9}, {1, 2, 50}, 3, prediction), IsEmpty());
  EXPECT_THAT(Draft({8, 9}, {1, 2, 50, 4, 5, 6}, 3, prediction), ElementsAre(7));
  EXPECT_THAT(Draft({8, 9}, {50, 51, 1, 2, 3}, 3, prediction), ElementsAre(4, 5, 6))
      << "something stands before it";
}

// What ends a prediction, or a prompt, is not what the answer goes on from.
TEST_F(DraftIndexTest, BehindAPredictionTheAnswerAloneIsLookedFor) {
  EXPECT_THAT(Draft({5, 6, 40, 41, 1, 5, 6}, {40}, 3, {1, 5, 6}), IsEmpty());
  EXPECT_THAT(Draft({5, 6, 40, 41, 42, 43}, {40, 41, 42}, 1, {1, 5, 6}), ElementsAre(43));
}

TEST_F(DraftIndexTest, OfMatchesOfOneLengthTheNewestCounts) {
  EXPECT_THAT(Draft({9, 1, 2, 3, 4, 5, 8, 1, 2, 3, 6, 7}, {0, 1, 2, 3}, 2), ElementsAre(6, 7));
  EXPECT_EQ(length_, 3);
}

TEST_F(DraftIndexTest, ATextThatRepeatsItselfIsExpectedToGoOnSo) {
  EXPECT_THAT(Draft({5, 6}, {1, 2, 3, 1, 2, 3}, 5), ElementsAre(1, 2, 3, 1, 2));
  EXPECT_THAT(Draft({7, 7, 7, 7}, {}, 3), ElementsAre(7, 7, 7));
}

TEST_F(DraftIndexTest, WithoutAMatchThereIsNoDraft) {
  EXPECT_THAT(Draft({1, 2, 3, 4, 5, 6}, {2, 3}, 4), IsEmpty());
  EXPECT_THAT(Draft({1}, {}, 4), IsEmpty());
  EXPECT_THAT(Draft({1, 2}, {1}, 4), IsEmpty());
  EXPECT_THAT(Draft({1, 2, 3}, {}, 4), IsEmpty());
}

TEST_F(DraftIndexTest, NothingIsFoundBeforeAllIsIndexed) {
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 1, 2, 3};
  DraftIndex index(prompt);
  EXPECT_FALSE(index.is_whole());
  EXPECT_EQ(index.Index(4), 4);
  EXPECT_FALSE(index.Find().has_value());
  EXPECT_EQ(index.Index(4), 3);
  ASSERT_TRUE(index.Find().has_value());
  EXPECT_EQ(index.Find()->next, 3);
  EXPECT_EQ(index.Index(4), 0);
  index.Append(4);
  EXPECT_FALSE(index.Find().has_value());
  EXPECT_EQ(index.Index(4), 1);
  EXPECT_EQ(index.Find()->length, 4);
}

TEST_F(DraftIndexTest, OfAPromptThatIsTooLongTheNewestTokensAreIndexed) {
  std::vector<int32_t> prompt = {1, 2, 3, 4};
  prompt.resize(static_cast<size_t>(DraftIndex::kMostIndexed) + 100, 0);
  for (size_t i = 4; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i % 9973) + 10;
  DraftIndex index(prompt);
  EXPECT_EQ(index.Index(kAll), DraftIndex::kMostIndexed);
  for (const int32_t token : {1, 2, 3}) index.Append(token);
  index.Index(kAll);
  EXPECT_FALSE(index.Find().has_value());
  for (const int32_t token : {4000, 4001, 4002}) index.Append(token);
  index.Index(kAll);
  ASSERT_TRUE(index.Find().has_value());
  std::vector<int32_t> draft;
  index.Read(*index.Find(), 2, draft);
  EXPECT_THAT(draft, ElementsAre(4003, 4004));
}

// Against a search of everything, as long as no more occurrences are there than are looked at.
TEST_F(DraftIndexTest, FindsWhatASearchFinds) {
  std::mt19937 random(3);
  int num_found = 0;
  for (int round = 0; round < 300; ++round) {
    const uint32_t alphabet = 3 + static_cast<uint32_t>(round) % 6;
    std::vector<int32_t> text(20 + round % 60);
    for (int32_t& token : text) token = static_cast<int32_t>(random() % alphabet);
    const auto last = std::ssize(text) - 1;
    int64_t best = 0, next = -1;
    for (int64_t end = last - 1; end >= 0; --end) {
      int64_t length = 0;
      while (length <= end && length < DraftIndex::kMostMatch &&
             text[static_cast<size_t>(end - length)] == text[static_cast<size_t>(last - length)]) {
        ++length;
      }
      if (length < DraftIndex::kLeastMatch || length <= best) continue;
      best = length;
      next = end + 1;
    }
    const size_t half = text.size() / 2;
    const std::vector<int32_t> prompt(text.begin(), text.begin() + static_cast<ptrdiff_t>(half));
    DraftIndex index(prompt);
    for (size_t i = half; i < text.size(); ++i) {
      index.Append(text[i]);
      index.Index(7);
    }
    index.Index(kAll);
    const auto found = index.Find();
    ASSERT_EQ(found.has_value(), next >= 0) << round;
    if (!found.has_value()) continue;
    ++num_found;
    EXPECT_EQ(found->next, next) << round;
    EXPECT_EQ(found->length, best) << round;
  }
  EXPECT_GT(num_found, 50);
}

}  // namespace
}  // namespace retroinfer
