#include "text/constraint/regex_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/constraint/grammar_texts.h"

namespace retroinfer::constraint {
namespace {

using testing::HasSubstr;
using Texts = std::vector<std::string>;

Texts TextsOfRegex(std::string_view pattern, size_t length_max = 4) {
  const auto expression = ParseRegex(pattern, {}, {});
  EXPECT_TRUE(expression.ok()) << expression.status();
  return TextsOf(*expression, length_max);
}

TEST(RegexParserTest, AllThatIsUnderstood) {
  EXPECT_EQ(TextsOfRegex("ab|c?"), (Texts{"", "ab", "c"}));
  EXPECT_EQ(TextsOfRegex("(?:a|b)c"), (Texts{"ac", "bc"}));
  EXPECT_EQ(TextsOfRegex("(?<n>a)(?P<m>b)"), Texts{"ab"});
  EXPECT_EQ(TextsOfRegex("a{2}"), Texts{"aa"});
  EXPECT_EQ(TextsOfRegex("a{3,}"), (Texts{"aaa", "aaaa"}));
  EXPECT_EQ(TextsOfRegex("a{1,2}?b+?"), (Texts{"aab", "aabb", "ab", "abb", "abbb"}));
  EXPECT_EQ(TextsOfRegex("a{x}{,2}"), Texts{});  // longer than four
  EXPECT_EQ(TextsOfRegex("a{,"), Texts{"a{,"});
  EXPECT_EQ(TextsOfRegex("^a$|^b"), (Texts{"a", "b"}));
  EXPECT_EQ(TextsOfRegex("[a-c]"), (Texts{"a", "b", "c"}));
  EXPECT_EQ(TextsOfRegex("()"), Texts{""});
  EXPECT_EQ(TextsOfRegex(""), Texts{""});
  EXPECT_EQ(TextsOfRegex("é"), Texts{"é"});
  const ExpressionPtr any = *ParseRegex(".", {}, {});
  EXPECT_TRUE(Has(any, "😀"));
  EXPECT_FALSE(Has(any, "\n"));
}

TEST(RegexParserTest, ASearchFindsThePatternAnywhere) {
  const RegexOptions search = {.is_search = true};
  const auto has = [&](std::string_view pattern, std::string_view text) {
    return Has(*ParseRegex(pattern, search, {}), text);
  };
  EXPECT_TRUE(has("b", "abc"));
  EXPECT_TRUE(has("^a", "abc"));
  EXPECT_FALSE(has("^b", "abc"));
  EXPECT_TRUE(has("c$", "abc"));
  EXPECT_TRUE(has("^a|c$", "bbc"));
  EXPECT_FALSE(has("^a|c$", "bab"));
  EXPECT_TRUE(has("", "any\ntext"));
}

TEST(RegexParserTest, RefusesByNameWithTheOffset) {
  const auto expect = [](std::string_view pattern, std::string_view what) {
    const auto expression = ParseRegex(pattern, {}, {});
    EXPECT_FALSE(expression.ok()) << pattern;
    EXPECT_THAT(std::string(expression.status().message()), HasSubstr(std::string(what)));
  };
  expect("a(?=b)", "offset 3: look-around");
  expect("(?<!b)", "look-around");
  expect("(?i)a", "flags");
  expect("a**", "a quantifier behind another");
  expect("a++", "a quantifier behind another");
  expect("*a", "something to repeat");
  expect("a{3,2}", "lower end first");
  expect("(a", "needs a )");
  expect("a)", "needs a (");
  expect("a^b", "^ is supported at the ends");
  expect("a$b", "$ is supported at the ends");
  expect("(a$)", "$ is supported at the ends");
  expect("[a", "needs a ]");
  expect("a\\", "backslash");
  expect("\xFF", "UTF-8");
  expect(std::string(10'000, '('), "deeper than 64");
}

}  // namespace
}  // namespace retroinfer::constraint
