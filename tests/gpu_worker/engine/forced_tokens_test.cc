#include "gpu_worker/engine/forced_tokens.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

TEST(ForcedTokensTest, GoesThroughContinuationsOneAfterTheOther) {
  const std::vector<std::vector<int32_t>> continuations = {{5, 6, 7}, {8}, {9, 5}};
  ForcedTokens tokens(continuations);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(tokens.num_firsts(), i);
    tokens.AddFirst({tokens.FirstTold(i), -static_cast<float>(i), {}});
  }
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
