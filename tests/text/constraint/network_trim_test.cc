#include "text/constraint/network_trim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/constraint/grammar_texts.h"

namespace retroinfer::constraint {
namespace {

using testing::HasSubstr;

TEST(NetworkTrimTest, CutsWaysThatNeverEnd) {
  Grammar grammar;
  const size_t endless = grammar.Add("endless");
  grammar.rules[endless].body = Sequence({Bytes("b"), CallRule(endless), Bytes("b")});
  grammar.root =
      grammar.Add("root", Alternatives({Bytes("a"), Sequence({Bytes("c"), CallRule(endless)}),
                                        Sequence({Bytes("d"), Nothing()})}));
  const Network network = NetworkOf(grammar);
  EXPECT_EQ(TextsOf(network), std::vector<std::string>{"a"});
  NaiveMatcher matcher(network);
  EXPECT_FALSE(matcher.Advance("c"));
  EXPECT_FALSE(matcher.Advance("d"));
}

TEST(NetworkTrimTest, NeedsAreTheLeastDepth) {
  // root needs a frame for each call that is not the last of its rule.
  Grammar grammar;
  const size_t leaf = grammar.Add("leaf", Bytes("x"));
  const size_t inner = grammar.Add("inner", Sequence({CallRule(leaf), Bytes(")")}));
  grammar.root = grammar.Add("root", Sequence({CallRule(inner), Bytes(")")}));
  Network network = NetworkOf(grammar);
  EXPECT_EQ(network.node(network.start()).need, 2u);
  grammar.rules[inner].body = Sequence({Bytes("("), CallRule(leaf)});
  network = NetworkOf(grammar);
  EXPECT_EQ(network.node(network.start()).need, 1u);
  const auto refused = BuildNetwork(grammar, 16, {.stack_depth_max = 0});
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("at most 0 rules"));
}

TEST(NetworkTrimTest, NoRuleBeginsWithItself) {
  Grammar grammar;
  const size_t maybe = grammar.Add("maybe", Optional(Bytes("m")));
  const size_t other = grammar.Add("other");
  grammar.root =
      grammar.Add("root", Alternatives({Bytes("x"), Sequence({CallRule(maybe), CallRule(other)})}));
  grammar.rules[other].body = Sequence({CallRule(grammar.root), Bytes("o")});
  EXPECT_THAT(std::string(BuildNetwork(grammar, 16, {}).status().message()),
              HasSubstr("begins with itself"));
  grammar.rules[maybe].body = Bytes("m");
  EXPECT_TRUE(BuildNetwork(grammar, 16, {}).ok());
}

}  // namespace
}  // namespace retroinfer::constraint
