#include "text/tokenizer/added_token_matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace retroinfer {
namespace {

using testing::ElementsAre;

// Segments as "text" or "id:text".
std::vector<std::string> Split(const std::vector<AddedTokenSpec>& tokens, std::string_view text,
                               bool parse_special = true) {
  std::vector<TextSegment> segments;
  AddedTokenMatcher(tokens).Split(text, parse_special, segments);
  std::vector<std::string> names;
  for (const TextSegment& segment : segments) {
    const std::string content(segment.text);
    names.push_back(segment.token_id == TextSegment::kText
                        ? content
                        : absl::StrCat(segment.token_id, ":", content));
  }
  return names;
}

TEST(AddedTokenMatcherTest, CutsTokensOut) {
  const std::vector<AddedTokenSpec> tokens = {{.id = 1, .content = "<a>"},
                                              {.id = 2, .content = "<ab>"}};
  EXPECT_THAT(Split(tokens, ""), ElementsAre());
  EXPECT_THAT(Split(tokens, "plain"), ElementsAre("plain"));
  EXPECT_THAT(Split(tokens, "x<a>y<ab><a"), ElementsAre("x", "1:<a>", "y", "2:<ab>", "<a"));
  EXPECT_THAT(Split(tokens, "<<a>>"), ElementsAre("<", "1:<a>", ">"));
  EXPECT_THAT(Split({}, "<a>"), ElementsAre("<a>"));
}

TEST(AddedTokenMatcherTest, TheLongestTokenWins) {
  const std::vector<AddedTokenSpec> tokens = {
      {.id = 1, .content = "ab"}, {.id = 2, .content = "abcd"}, {.id = 3, .content = "bcde"}};
  EXPECT_THAT(Split(tokens, "abcde"), ElementsAre("2:abcd", "e"));
  EXPECT_THAT(Split(tokens, "abce"), ElementsAre("1:ab", "ce"));
}

TEST(AddedTokenMatcherTest, SpecialTokensCountWhenAskedFor) {
  const std::vector<AddedTokenSpec> tokens = {{.id = 1, .content = "<s>", .special = true},
                                              {.id = 2, .content = "s>"}};
  EXPECT_THAT(Split(tokens, "<s>s>", true), ElementsAre("1:<s>", "2:s>"));
  // A special token that does not count hides what lies inside it.
  EXPECT_THAT(Split(tokens, "<s>s>", false), ElementsAre("<s>", "2:s>"));
}

TEST(AddedTokenMatcherTest, StripsWhiteSpace) {
  const std::vector<AddedTokenSpec> tokens = {{.id = 1, .content = "<l>", .lstrip = true},
                                              {.id = 2, .content = "<r>", .rstrip = true}};
  EXPECT_THAT(Split(tokens, "a \u3000<l> b"), ElementsAre("a", "1: \u3000<l>", " b"));
  EXPECT_THAT(Split(tokens, "a <r>\n\u2003b"), ElementsAre("a ", "2:<r>\n\u2003", "b"));
  EXPECT_THAT(Split(tokens, "<r> <l>"), ElementsAre("2:<r> ", "1:<l>"));
  EXPECT_THAT(Split({tokens[1], {.id = 3, .content = " x"}}, "<r> x x"),
              ElementsAre("2:<r> ", "x", "3: x"));
  EXPECT_THAT(Split(tokens, " <l>"), ElementsAre("1: <l>"));
}

TEST(AddedTokenMatcherTest, SingleWordsHaveNoWordBesideThem) {
  const std::vector<AddedTokenSpec> tokens = {{.id = 1, .content = "it", .single_word = true}};
  EXPECT_THAT(Split(tokens, "it"), ElementsAre("1:it"));
  EXPECT_THAT(Split(tokens, "fit it,its it_ \u00E9it it\u0301"),
              ElementsAre("fit ", "1:it", ",its it_ \u00E9it it\u0301"));
  EXPECT_THAT(Split(tokens, "\u2460it\u24B6it"), ElementsAre("\u2460it\u24B6it"));
  EXPECT_THAT(Split(tokens, "it\U0002EC33"), ElementsAre("it\U0002EC33"));  // of Unicode 15.1
  EXPECT_THAT(Split(tokens, "\u2460it\u2460"), ElementsAre("\u2460", "1:it", "\u2460"));
}

}  // namespace
}  // namespace retroinfer
