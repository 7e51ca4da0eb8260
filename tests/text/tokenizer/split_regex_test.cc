#include "text/tokenizer/split_regex.h"

#include <gtest/gtest.h>

#include "tests/text/tokenizer/tokenizer_fixtures.h"

namespace retroinfer {
namespace {

TEST(SplitRegexTest, FindsMatchesFromAnOffset) {
  const auto regex = SplitRegex::Compile("b+");
  ASSERT_TRUE(regex.ok());
  SplitMatcher matcher(*regex);
  const auto first = matcher.Find("abbab", 0);
  ASSERT_TRUE(first.ok() && first->has_value());
  EXPECT_EQ((*first)->begin, 1u);
  EXPECT_EQ((*first)->end, 3u);
  const auto second = matcher.Find("abbab", 3);
  ASSERT_TRUE(second.ok() && second->has_value());
  EXPECT_EQ((*second)->begin, 4u);
  const auto third = matcher.Find("abbab", 5);
  ASSERT_TRUE(third.ok());
  EXPECT_FALSE(third->has_value());
}

TEST(SplitRegexTest, RefusesBadAndEmptyPatterns) {
  EXPECT_EQ(SplitRegex::Compile("(a").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SplitRegex::Compile("a*").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SplitRegex::Compile("a|").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SplitRegexTest, ARunawayPatternFailsInsteadOfHanging) {
  const auto regex = SplitRegex::Compile("(?:a|a|aa)+(?:b|c)(?:d|e)");
  ASSERT_TRUE(regex.ok()) << regex.status();
  const auto match = SplitMatcher(*regex).Find(std::string(200, 'a') + "bx", 0);
  EXPECT_EQ(match.status().code(), absl::StatusCode::kResourceExhausted) << match.status();
  EXPECT_NE(Message(match.status()).find("202 bytes"), std::string::npos);
}

TEST(SplitRegexTest, LongMatchesNeedNoStack) {
  // Groups that repeat save a state for each round: more than the stack of compiled code holds.
  const auto regex = SplitRegex::Compile("(?:a|bc)+d");
  ASSERT_TRUE(regex.ok());
  const std::string subject = std::string(200'000, 'a') + "d";
  const auto match = SplitMatcher(*regex).Find(subject, 0);
  ASSERT_TRUE(match.ok()) << match.status();
  ASSERT_TRUE(match->has_value());
  EXPECT_EQ((*match)->end, subject.size());
}

}  // namespace
}  // namespace retroinfer
