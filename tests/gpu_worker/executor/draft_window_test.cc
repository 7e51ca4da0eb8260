#include "gpu_worker/executor/draft_window.h"

#include <gtest/gtest.h>

#include <vector>

namespace retroinfer {
namespace {

TEST(DraftWindowTest, AShortTextIsSeenAsItIs) {
  DraftWindow window(64, 40);
  EXPECT_EQ(window.LengthOf(40), 40);
  for (int64_t position = 0; position < 40; ++position) {
    EXPECT_EQ(window.PositionInText(position), position);
  }
  EXPECT_FALSE(window.MakeRoom(56, 8));
  EXPECT_EQ(window.LengthOf(56), 56);
}

TEST(DraftWindowTest, OfALongTextTheFirstAndTheNewestTokensAreSeen) {
  const DraftWindow window(64, 1000);
  EXPECT_EQ(window.LengthOf(1000), 32);
  EXPECT_EQ(window.PositionInText(0), 0);
  EXPECT_EQ(window.PositionInText(3), 3);
  EXPECT_EQ(window.PositionInText(4), 972);
  EXPECT_EQ(window.PositionInText(31), 999);
  EXPECT_EQ(window.LengthOf(1010), 42);
}

TEST(DraftWindowTest, TheWindowMovesWhenItIsFull) {
  DraftWindow window(64, 10);
  int moves = 0;
  for (int64_t size = 10; size < 500; ++size) {
    moves += window.MakeRoom(size, 8) ? 1 : 0;
    ASSERT_LE(window.LengthOf(size) + 8, 64);
    ASSERT_EQ(window.PositionInText(window.LengthOf(size) - 1), size - 1);
  }
  // From 57 tokens to 32, and so every 25 tokens.
  EXPECT_EQ(moves, 1 + (499 - 57) / 25);
}

TEST(DraftedTextTest, AnAnswerIsBehindItsPrompt) {
  const std::vector<int32_t> prompt = {1, 2, 3}, answer = {4, 5};
  const DraftedText text{.id = 1, .prompt = prompt, .answer = answer};
  EXPECT_EQ(text.size(), 5);
  for (int64_t position = 0; position < 5; ++position) EXPECT_EQ(text[position], position + 1);
}

}  // namespace
}  // namespace retroinfer
