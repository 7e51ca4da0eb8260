#include "text/constraint/json_syntax.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/text/constraint/grammar_texts.h"

namespace retroinfer::constraint {
namespace {

TEST(JsonSyntaxTest, CharactersAreEscapedWhereTheyMustBe) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(TextsOf(JsonCharacters({{'a', 'b'}, {'"', '"'}})), (Texts{"\\\"", "a", "b"}));
  EXPECT_EQ(TextsOf(JsonCharacters({{0, 2}, {'\n', '\n'}})),
            (Texts{"\\n", "\\u0000", "\\u0001", "\\u0002"}));
  EXPECT_EQ(TextsOf(JsonCharacters({{0xE9, 0xE9}})), Texts{"é"});
  EXPECT_EQ(JsonStringLiteral("a\"\\\t\x01é")->bytes, R"("a\"\\\t\u0001é")");
}

TEST(JsonSyntaxTest, WhiteSpaceIsBounded) {
  Grammar grammar;
  JsonSyntax json(grammar);
  grammar.root = grammar.Add("root", json.Space());
  const Network network = NetworkOf(grammar);
  EXPECT_TRUE(Has(network, ""));
  EXPECT_TRUE(Has(network, " "));
  EXPECT_TRUE(Has(network, absl::StrCat("\n", std::string(60, ' '), "\t\t\t\t")));
  EXPECT_FALSE(Has(network, "  "));
  EXPECT_FALSE(Has(network, absl::StrCat("\n", std::string(65, ' '))));
}

TEST(JsonSyntaxTest, RulesAreAddedOnce) {
  Grammar grammar;
  JsonSyntax json(grammar);
  const size_t value = json.Value()->rule;
  const size_t num_rules = grammar.rules.size();
  EXPECT_EQ(json.Value()->rule, value);
  (void)json.Array();
  (void)json.Object();
  EXPECT_EQ(grammar.rules.size(), num_rules);
  for (const Grammar::Rule& rule : grammar.rules) EXPECT_NE(rule.body, nullptr) << rule.name;
}

TEST(JsonSyntaxTest, NumbersFitADouble) {
  Grammar grammar;
  JsonSyntax json(grammar);
  grammar.root = grammar.Add("root", json.Number());
  const Network network = NetworkOf(grammar);
  EXPECT_TRUE(Has(network, "-12345678901234567890.12345678901234567890e-99"));
  EXPECT_FALSE(Has(network, "123456789012345678901"));
  EXPECT_FALSE(Has(network, "1e100"));
  EXPECT_FALSE(Has(network, "00"));
  EXPECT_FALSE(Has(network, "-"));
}

}  // namespace
}  // namespace retroinfer::constraint
