#include "text/tokenizer/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer {
namespace {

using testing::ElementsAre;

std::vector<std::string_view> Split(const std::vector<SplitSpec>& splits, std::string_view text) {
  const auto pre_tokenizer = PreTokenizer::Create(splits);
  EXPECT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.status();
  PreTokenizer::Run run(*pre_tokenizer);
  const auto pieces = run.Split(text);
  EXPECT_TRUE(pieces.ok()) << pieces.status();
  return **pieces;
}

TEST(PreTokenizerTest, KeepsMatchesAndGaps) {
  EXPECT_THAT(Split({{.pattern = "b+"}}, "abbaab"), ElementsAre("a", "bb", "aa", "b"));
  EXPECT_THAT(Split({{.pattern = "b+", .keep_matches = false}}, "abbaab"), ElementsAre("a", "aa"));
  EXPECT_THAT(Split({{.pattern = "b+", .keep_gaps = false}}, "abbaab"), ElementsAre("bb", "b"));
  EXPECT_THAT(Split({}, "abba"), ElementsAre("abba"));
  EXPECT_THAT(Split({{.pattern = "b+"}}, ""), ElementsAre());
}

TEST(PreTokenizerTest, StagesSeeOnePieceEach) {
  // The look-ahead of the second stage ends with the piece of the first.
  EXPECT_THAT(Split({{.pattern = "x"}, {.pattern = "a(?!b|x)"}}, "aaxab"),
              ElementsAre("a", "a", "x", "ab"));
}

TEST(PreTokenizerTest, RefusesBadPatterns) {
  EXPECT_EQ(PreTokenizer::Create({{.pattern = "("}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(PreTokenizerTest, PassesOnThatAPatternFails) {
  const auto pre_tokenizer = PreTokenizer::Create({{.pattern = "(?:a|a|aa)+(?:b|c)(?:d|e)"}});
  ASSERT_TRUE(pre_tokenizer.ok());
  PreTokenizer::Run run(*pre_tokenizer);
  EXPECT_EQ(run.Split(std::string(200, 'a') + "bx").status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(run.Split("aabd").ok());
}

}  // namespace
}  // namespace retroinfer
