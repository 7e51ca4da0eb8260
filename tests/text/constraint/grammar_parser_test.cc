#include "text/constraint/grammar_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/constraint/constraint_fixtures.h"

namespace retroinfer::constraint {
namespace {

using testing::HasSubstr;

TEST(GrammarParserTest, ReadsTheNotationOfLlamaCpp) {
  const auto moves = MustCompile(GrammarText(R"(
# a game
root ::= (
    "1. " move " " move "\n"   # first
    ([1-9] [0-9]? ". " move " " move "\n")+
)
move ::= (pawn | nonpawn | castle) [+#]?
pawn    ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
castle  ::= "O-O" "-O"?
)"));
  EXPECT_TRUE(Accepts(*moves, "1. e4 e5\n2. Nf3 Nc6\n"));
  EXPECT_FALSE(Accepts(*moves, "1. e4 e5\n"));
  EXPECT_FALSE(Accepts(*moves, "1. e9 e5\n2. Nf3 Nc6\n"));
}

TEST(GrammarParserTest, RulesGoOnOverLines) {
  const auto list =
      MustCompile(GrammarText("root ::= item\n  more\n  | \"none\"\n"
                              "item ::= [a-z]{2,3}\nmore ::= (\",\" item)*"));
  EXPECT_TRUE(Accepts(*list, "ab,abc"));
  EXPECT_TRUE(Accepts(*list, "none"));
  EXPECT_FALSE(Accepts(*list, "abcd"));
}

TEST(GrammarParserTest, NamesBehindPercent) {
  const auto calls = MustCompile(
      GrammarText(R"(root ::= %until "<t>" %json {"type": "integer"} "</t>" %without "<t>")"));
  EXPECT_TRUE(Accepts(*calls, "a <t><t>1</t>") == false);
  EXPECT_TRUE(Accepts(*calls, "a < t <t>12</t>"));
  EXPECT_TRUE(Accepts(*calls, "<t>12</t> é <<t"));
  EXPECT_FALSE(Accepts(*calls, "<t>12</t> <<t>"));
  const auto regex = MustCompile(GrammarText(R"(root ::= %regex "\\d{2}|x" ".")"));
  EXPECT_TRUE(Accepts(*regex, "12."));
  EXPECT_TRUE(Accepts(*regex, "x."));
}

TEST(GrammarParserTest, RefusesWithTheLine) {
  const auto expect = [](std::string_view text, std::string_view line, std::string_view what) {
    const std::string message = Refusal(GrammarText(text));
    EXPECT_THAT(message, testing::StartsWith(std::string(line)));
    EXPECT_THAT(message, HasSubstr(std::string(what)));
  };
  expect("", "line 1", "with the name \"root\"");
  expect("root ::= a\n", "line 1", "\"a\" is not defined");
  expect("root ::= \"a\"\n\nroot ::= \"b\"", "line 3", "defined twice");
  expect("root ::= \"a\"\n)", "line 2", "needs a rule");
  expect("root ::= (\"a\"", "line 1", "needs a )");
  expect("root ::=\n%frob \"a\"", "line 2", "there is no %frob");
  expect("root ::= %special \"<|none|>\"", "line 1", "no special token");
  expect("root ::= %special \"<|end|>\"", "line 1", "no special token");
  expect("root ::= %json {\"not\": 1}", "line 1", "not supported");
  expect("root ::= %regex \"(\"", "line 1", "%regex");
  expect("root ::= %until \"\"", "line 1", "1 to");
  expect("root ::= root \"a\" | \"b\"", "rule \\\"root\\\"", "begins with itself");
  expect("root ::= a\na ::= b? a | \"x\"\nb ::= \"y\"", "rule", "begins with itself");
  expect("root ::= \"a\" root", "constraint", "accepts no text");
  expect("root ::= \"\xFF\"", "line 1", "UTF-8");
  std::string nested = "root ::= ";
  for (int i = 0; i < 5000; ++i) nested += "(";
  expect(nested, "line 1", "deeper than");
}

TEST(GrammarParserTest, RightRecursionHasNoDepth) {
  const auto list = MustCompile(GrammarText("root ::= \"a\" root | \"b\""));
  EXPECT_TRUE(Accepts(*list, std::string(10'000, 'a') + "b"));
}

}  // namespace
}  // namespace retroinfer::constraint
