#include "text/constraint/grammar_scanner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer::constraint {
namespace {

using testing::HasSubstr;

std::string LiteralError(std::string_view text) {
  return std::string(GrammarScanner(text).Literal().status().message());
}

TEST(GrammarScannerTest, Literals) {
  EXPECT_EQ(*GrammarScanner(R"("a\n\t\r\\\"\x41\u00e9\U0001F600[")").Literal(), "a\n\t\r\\\"Aé😀[");
  EXPECT_EQ(*GrammarScanner(R"("")").Literal(), "");
  EXPECT_THAT(LiteralError("\"a"), HasSubstr("has no end"));
  EXPECT_THAT(LiteralError("\"a\n\""), HasSubstr("a line end is \\n"));
  EXPECT_THAT(LiteralError(R"("\d")"), HasSubstr("a backslash needs"));
  EXPECT_THAT(LiteralError(R"("\ud800")"), HasSubstr("character of Unicode"));
  EXPECT_THAT(LiteralError(R"("\x4")"), HasSubstr("2 hexadecimal digits"));
  EXPECT_THAT(LiteralError("a"), HasSubstr("in double quotes"));
}

TEST(GrammarScannerTest, Classes) {
  const auto set = GrammarScanner(R"(a-c\]x-])").Class();
  ASSERT_TRUE(set.ok());
  for (const char member : std::string_view("abc]x-")) {
    EXPECT_TRUE(set->Contains(static_cast<char32_t>(member))) << member;
  }
  EXPECT_FALSE(set->Contains('d'));
  const auto negated = GrammarScanner("^\\n\"]").Class();
  ASSERT_TRUE(negated.ok());
  EXPECT_FALSE(negated->Contains('\n'));
  EXPECT_TRUE(negated->Contains(0x1F600));
  EXPECT_FALSE(GrammarScanner("z-a]").Class().ok());
  EXPECT_FALSE(GrammarScanner("ab").Class().ok());
}

TEST(GrammarScannerTest, Counts) {
  using Pair = std::pair<int64_t, int64_t>;
  EXPECT_EQ(GrammarScanner("*").Counts()->value(), Pair(0, -1));
  EXPECT_EQ(GrammarScanner("+").Counts()->value(), Pair(1, -1));
  EXPECT_EQ(GrammarScanner("?").Counts()->value(), Pair(0, 1));
  EXPECT_EQ(GrammarScanner("{3}").Counts()->value(), Pair(3, 3));
  EXPECT_EQ(GrammarScanner("{ 3 , }").Counts()->value(), Pair(3, -1));
  EXPECT_EQ(GrammarScanner("{3,5}").Counts()->value(), Pair(3, 5));
  EXPECT_FALSE(GrammarScanner("a").Counts()->has_value());
  EXPECT_FALSE(GrammarScanner("{5,3}").Counts().ok());
  EXPECT_FALSE(GrammarScanner("{a}").Counts().ok());
}

TEST(GrammarScannerTest, JsonEndsWithItsBrace) {
  EXPECT_EQ(*GrammarScanner(R"({"a": {"b": "}\"}"}} rest)").JsonObject(),
            R"({"a": {"b": "}\"}"}})");
  EXPECT_FALSE(GrammarScanner("{\"a\"").JsonObject().ok());
  EXPECT_FALSE(GrammarScanner("true").JsonObject().ok());
}

TEST(GrammarScannerTest, SkipsCommentsAndCountsLines) {
  GrammarScanner scanner("# one\n  # two\nname ::= x");
  scanner.SkipSpace();
  EXPECT_EQ(scanner.line(), 3u);
  EXPECT_TRUE(scanner.AtRule());
  EXPECT_EQ(scanner.TakeName(), "name");
  EXPECT_FALSE(scanner.AtRule());
}

}  // namespace
}  // namespace retroinfer::constraint
