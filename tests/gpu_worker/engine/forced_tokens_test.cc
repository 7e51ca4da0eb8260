#include "gpu_worker/engine/forced_tokens.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

TEST(ForcedTokensTest, GoesThroughContinuationsOneAfterTheOther) {
  const std::vector<std::vector<int32_t>> continuations = {{5, 6, 7}, {8}, {9, 5}};
  ForcedTokens tokens(continuations);
  ASSERT_EQ(tokens.Firsts(), (std::vector<int32_t>{5, 8, 9}));
  std::vector<OutputToken> firsts;
  for (const int32_t token : tokens.Firsts()) firsts.push_back({token, -1.0f, {}});
  tokens.SetFirsts(std::move(firsts));
  EXPECT_EQ(tokens.First().token, 5);
  tokens.Count();
  EXPECT_EQ(tokens.left(), 2);
  EXPECT_EQ(tokens.Fed(0), 5);  // to measure what comes behind it
  EXPECT_EQ(tokens.Told(0), 6);
  EXPECT_EQ(tokens.Fed(1), 6);
  EXPECT_EQ(tokens.Told(1), 7);
  tokens.Count();
  EXPECT_EQ(tokens.Fed(0), 6);
  tokens.Count();
  EXPECT_EQ(tokens.left(), 0);
  ASSERT_TRUE(tokens.Next());
  EXPECT_EQ(tokens.continuation(), 1);
  EXPECT_EQ(tokens.First().token, 8);
  tokens.Count();
  EXPECT_EQ(tokens.left(), 0);
  ASSERT_TRUE(tokens.Next());
  tokens.Count();
  EXPECT_EQ(tokens.Fed(0), 9);
  EXPECT_EQ(tokens.Told(0), 5);
  tokens.Count();
  EXPECT_FALSE(tokens.Next());
}

}  // namespace
}  // namespace retroinfer
