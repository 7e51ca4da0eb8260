#include "text/constraint/regex_scanner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer::constraint {
namespace {

using testing::HasSubstr;

std::string EscapeError(std::string_view text) {
  return std::string(RegexScanner(text).Escape().status().message());
}

TEST(RegexScannerTest, Escapes) {
  const auto one = [](std::string_view text) {
    const auto set = RegexScanner(text).Escape();
    EXPECT_TRUE(set.ok()) << text;
    EXPECT_EQ(set->ranges().size(), 1u) << text;
    return set->ranges()[0].first;
  };
  EXPECT_EQ(one("n"), U'\n');
  EXPECT_EQ(one("x41"), U'A');
  EXPECT_EQ(one("u00e9"), U'é');
  EXPECT_EQ(one("u{1F600}"), U'😀');
  EXPECT_EQ(one("x{1F600}"), U'😀');
  EXPECT_EQ(one("uD83D\\uDE00"), U'😀');
  EXPECT_EQ(one("."), U'.');
  EXPECT_EQ(one("/"), U'/');
  EXPECT_EQ(one("0"), U'\0');
  EXPECT_TRUE(RegexScanner("S").Escape()->Contains('x'));
  EXPECT_FALSE(RegexScanner("S").Escape()->Contains(0xA0));
  EXPECT_FALSE(RegexScanner("s").Escape()->Contains(0xA0));
  EXPECT_FALSE(RegexScanner("W").Escape()->Contains('_'));
}

TEST(RegexScannerTest, RefusesEscapesByName) {
  EXPECT_THAT(EscapeError("b"), HasSubstr("word boundaries"));
  EXPECT_THAT(EscapeError("1"), HasSubstr("back references"));
  EXPECT_THAT(EscapeError("k<a>"), HasSubstr("back references"));
  EXPECT_THAT(EscapeError("01"), HasSubstr("back references"));
  EXPECT_THAT(EscapeError("p{L}"), HasSubstr("Unicode properties"));
  EXPECT_THAT(EscapeError("q"), HasSubstr("\\q is not supported"));
  EXPECT_THAT(EscapeError("uD83D"), HasSubstr("no character"));
  EXPECT_THAT(EscapeError("u{110000}"), HasSubstr("no character"));
  EXPECT_THAT(EscapeError("u12"), HasSubstr("four hexadecimal"));
  EXPECT_THAT(EscapeError(""), HasSubstr("backslash"));
}

TEST(RegexScannerTest, Classes) {
  const auto set = RegexScanner(R"(a-c\d\-x-\n])").Class();
  EXPECT_FALSE(set.ok());  // a range that goes down
  const auto good = RegexScanner(R"(a-c\d\]é-])").Class();
  ASSERT_TRUE(good.ok());
  for (const char32_t member : {U'a', U'b', U'7', U']', U'é', U'-'}) {
    EXPECT_TRUE(good->Contains(member));
  }
  EXPECT_FALSE(good->Contains('d'));
  EXPECT_FALSE(RegexScanner("^a]").Class()->Contains('a'));
  EXPECT_TRUE(RegexScanner("]").Class()->empty());
  EXPECT_TRUE(RegexScanner("^]").Class()->Contains('a'));
  EXPECT_FALSE(RegexScanner("a-\\d]").Class().ok());
  EXPECT_FALSE(RegexScanner("[:alpha:]]").Class().ok());
  EXPECT_FALSE(RegexScanner("ab").Class().ok());
}

}  // namespace
}  // namespace retroinfer::constraint
