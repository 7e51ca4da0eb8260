#include "text/constraint/expression.h"

#include <gtest/gtest.h>

#include "tests/text/constraint/grammar_texts.h"

namespace retroinfer::constraint {
namespace {

TEST(ExpressionTest, OnePartStandsForItself) {
  const ExpressionPtr part = Bytes("a");
  EXPECT_EQ(Sequence({part}), part);
  EXPECT_EQ(Alternatives({part}), part);
}

TEST(ExpressionTest, EachKindHasItsTexts) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(TextsOf(Empty()), Texts{""});
  EXPECT_EQ(TextsOf(Optional(Bytes("a"))), (Texts{"", "a"}));
  EXPECT_EQ(TextsOf(Alternatives({Bytes("b"), Nothing(), Bytes("a")})), (Texts{"a", "b"}));
  EXPECT_EQ(TextsOf(Sequence({Characters({{'a', 'b'}}), Bytes("c")})), (Texts{"ac", "bc"}));
  EXPECT_EQ(TextsOf(Repeat(Bytes("a"), 2), 4), (Texts{"aa", "aaa", "aaaa"}));
  EXPECT_EQ(TextsOf(Repeat(Bytes("a"), 1, 2)), (Texts{"a", "aa"}));
  EXPECT_EQ(TextsOf(Graph({{.edges = {{Bytes("a"), 1}, {nullptr, 1}}},
                           {.edges = {{Bytes("b"), 0}}, .accepts = true}}),
                    3),
            (Texts{"", "a", "ab", "aba", "abb", "b", "ba", "bab", "bb", "bba", "bbb"}));
}

TEST(ExpressionTest, RulesCallEachOther) {
  Grammar grammar;
  grammar.root = grammar.Add("root");
  const size_t end = grammar.Add("end", Bytes(";"));
  grammar.rules[grammar.root].body =
      Alternatives({CallRule(end), Sequence({Bytes("("), CallRule(grammar.root), Bytes(")")})});
  EXPECT_EQ(TextsOf(NetworkOf(grammar), 5), (std::vector<std::string>{"((;))", "(;)", ";"}));
}

}  // namespace
}  // namespace retroinfer::constraint
