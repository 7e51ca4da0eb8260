#include "text/tokenizer/regex_syntax.h"

#include <gtest/gtest.h>

#include "tests/text/tokenizer/tokenizer_fixtures.h"
#include "text/tokenizer/split_regex.h"

namespace retroinfer {
namespace {

// The first match of `pattern` in `subject`, or "(none)".
std::string FirstMatch(std::string_view pattern, std::string_view subject) {
  const auto translated = TranslateRegex(pattern);
  EXPECT_TRUE(translated.ok()) << translated.status();
  const auto regex = SplitRegex::Compile(*translated);
  EXPECT_TRUE(regex.ok()) << *translated << ": " << regex.status();
  const auto match = SplitMatcher(*regex).Find(subject, 0);
  EXPECT_TRUE(match.ok()) << match.status();
  if (!match->has_value()) return "(none)";
  return std::string(subject.substr((*match)->begin, (*match)->end - (*match)->begin));
}

TEST(RegexSyntaxTest, ReadsThePatternsOfTheFamilies) {
  for (
      const char* const pattern : {
          R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
          R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
          R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
          R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t)?|\p{N}{1,3})",
      }) {
    EXPECT_TRUE(TranslateRegex(pattern).ok()) << TranslateRegex(pattern).status();
  }
}

TEST(RegexSyntaxTest, TermsKeepTheirMeaning) {
  EXPECT_EQ(FirstMatch("a|b", "xb"), "b");
  EXPECT_EQ(FirstMatch("(ab)+", "xababa"), "abab");
  EXPECT_EQ(FirstMatch("(?:ab)+?", "xababa"), "ab");
  EXPECT_EQ(FirstMatch("(?i:LL)e", "xlLe"), "lLe");
  EXPECT_EQ(FirstMatch("(?i:'s)", "'\u017F"), "'\u017F");
  EXPECT_EQ(FirstMatch("a(?!b)", "abac"), "a");
  EXPECT_EQ(FirstMatch("a(?=b)b", "acab"), "ab");
  EXPECT_EQ(FirstMatch(R"([a\-c]+)", "b-a"), "-a");
  EXPECT_EQ(FirstMatch("[a-c]+", "xcab-"), "cab");
  EXPECT_EQ(FirstMatch("[a-]+", "b-a"), "-a");
  EXPECT_EQ(FirstMatch("[^a-c]+", "axyb"), "xy");
  EXPECT_EQ(FirstMatch(R"(\x41\x{1F600}\u00e9)", "A\U0001F600\u00E9"), "A\U0001F600\u00E9");
  EXPECT_EQ(FirstMatch(R"(\.\*\ #)", ".* #"), ".* #");
  EXPECT_EQ(FirstMatch("9{2}", "9999"), "99");
  EXPECT_EQ(FirstMatch("9{2,}", "9999"), "9999");
  EXPECT_EQ(FirstMatch("[一-龥]+", "a中文b"), "中文");
  EXPECT_EQ(FirstMatch(R"(\P{L}+)", "ab12c"), "12");
  EXPECT_EQ(FirstMatch(R"([^\S\n]+)", "a\n\t b"), "\t ");
}

TEST(RegexSyntaxTest, DifferencesOfTheLibrariesAreEvenedOut) {
  // U+180E is no white space to Oniguruma.
  EXPECT_EQ(FirstMatch(R"(\s+)", "\u180E\u0085\u2003"), "\u0085\u2003");
  EXPECT_EQ(FirstMatch(R"(\S+)", "\u180E "), "\u180E");
  // A letter and a number of Unicode 16, inside and outside of a class.
  EXPECT_EQ(FirstMatch(R"(\p{L}+)", "\U0001E5D0"), "\U0001E5D0");
  EXPECT_EQ(FirstMatch(R"([^\s\p{L}]+)", "\U0001E5D0!"), "!");
  EXPECT_EQ(FirstMatch(R"(\P{N}+)", "\U00016D70x"), "x");
  EXPECT_EQ(FirstMatch(R"(\d)", "x\U00016D70"), "\U00016D70");
  // The script Han, without the extensions of the script.
  EXPECT_EQ(FirstMatch(R"(\p{Han}+)", "\u3001\u4E00"), "\u4E00");
}

TEST(RegexSyntaxTest, WhatIsNotUnderstoodIsRefused) {
  for (const char* const pattern : {"^a",
                                    "a$",
                                    "a.b",
                                    "(?<n>a)",
                                    "(?<=a)b",
                                    "(?<!a)b",
                                    "(?i)a",
                                    "(?>a)",
                                    "(*FAIL)",
                                    R"(\b)",
                                    R"(\w)",
                                    R"(\1a)",
                                    R"(\h)",
                                    R"(\R)",
                                    R"(\v)",
                                    R"(\G)",
                                    R"(\p{IsGreek})",
                                    R"(\p{^L})",
                                    R"(\pL)",
                                    "[[:alpha:]]",
                                    "[a[b]]",
                                    "[a&&b]",
                                    "[]a]",
                                    "[b-a]",
                                    R"([\s-a])",
                                    R"([a-\s])",
                                    "[a-c-e]",
                                    R"([\P{L}])",
                                    "a{,3}",
                                    "a{2",
                                    "a{3,2}",
                                    "a{2000}",
                                    "a{2}?",
                                    "a{2}+",
                                    "a**",
                                    "*a",
                                    "a)",
                                    "(a",
                                    "[a",
                                    "a\\",
                                    "]",
                                    "{",
                                    R"(\xff)",
                                    R"(\ud800)",
                                    R"(\x{110000})",
                                    "\xFF"}) {
    const auto translated = TranslateRegex(pattern);
    EXPECT_EQ(translated.status().code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_NE(Message(translated.status()).find("offset"), std::string::npos);
  }
  EXPECT_FALSE(TranslateRegex(std::string(20000, 'a')).ok());
  EXPECT_FALSE(TranslateRegex(std::string(1000, '(')).ok());
}

TEST(RegexSyntaxTest, ALiteralMatchesItselfOnly) {
  const std::string literal = R"(a.\E[é]*)";
  const auto regex = SplitRegex::Compile(EscapeLiteral(literal));
  ASSERT_TRUE(regex.ok()) << regex.status();
  const auto match = SplitMatcher(*regex).Find("xx" + literal, 0);
  ASSERT_TRUE(match.ok() && match->has_value());
  EXPECT_EQ((*match)->begin, 2u);
  EXPECT_EQ((*match)->end, 2 + literal.size());
}

}  // namespace
}  // namespace retroinfer
