#include "text/constraint/network_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/constraint/grammar_texts.h"

namespace retroinfer::constraint {
namespace {

using testing::HasSubstr;

std::string BuildError(const ExpressionPtr& expression, const Limits& limits = {}) {
  Grammar grammar;
  grammar.root = grammar.Add("root", expression);
  return std::string(BuildNetwork(grammar, 16, limits).status().message());
}

TEST(NetworkBuilderTest, RefusesWhatIsTooLarge) {
  const ExpressionPtr letter = Characters({{'a', 'z'}});
  EXPECT_EQ(BuildError(Repeat(letter, 50, 60), {.nodes_max = 200}), "");
  EXPECT_THAT(BuildError(Repeat(letter, 150, 260), {.nodes_max = 200}),
              HasSubstr("more than 200 nodes"));
  EXPECT_THAT(BuildError(Repeat(Repeat(Repeat(letter, 0, 1000), 0, 1000), 0, 1000)),
              HasSubstr("nodes"));
  // Parts that write no node cost time, too.
  EXPECT_THAT(BuildError(Repeat(Repeat(Empty(), 1000, 1'000'000'000), 1'000'000'000)),
              HasSubstr("nodes"));
}

TEST(NetworkBuilderTest, EqualNodesAreWrittenOnce) {
  std::vector<ExpressionPtr> parts;
  for (int i = 0; i < 100; ++i) {
    parts.push_back(Sequence({Characters({{'a', 'z'}}), Bytes("the same end")}));
  }
  EXPECT_LT(NetworkOf(Alternatives(std::move(parts))).num_nodes(), 30u);
}

TEST(NetworkBuilderTest, FlagsTextWithRoomForTheLongestToken) {
  const ExpressionPtr text = Characters(CharactersOf(TextSet::kJsonText));
  const auto num_flagged = [](const ExpressionPtr& expression) {
    const Network network = NetworkOf(expression);  // of tokens with at most 16 characters
    size_t count = 0;
    for (NodeId id = 0; id < network.num_nodes(); ++id) count += network.node(id).text_sets != 0;
    return count;
  };
  EXPECT_EQ(num_flagged(Repeat(text, 0, 15)), 0u);
  EXPECT_EQ(num_flagged(Repeat(text, 0, 17)), 2u);  // with 17 and with 16 characters left
  EXPECT_GT(num_flagged(Repeat(text, 0)), 0u);
  EXPECT_EQ(num_flagged(Repeat(Characters({{'a', 'z'}}), 0)), 0u);
  EXPECT_GT(num_flagged(Repeat(Alternatives({Bytes("\\n"), text}), 0)), 0u);
}

TEST(NetworkBuilderTest, GraphsWithOverlappingEdges) {
  EXPECT_EQ(
      TextsOf(Graph({{.edges = {{Characters({{'a', 'c'}}), 1}, {Characters({{'b', 'd'}}), 2}}},
                     {.edges = {{Bytes("1"), 3}}},
                     {.edges = {{Bytes("2"), 3}}},
                     {.edges = {}, .accepts = true}})),
      (std::vector<std::string>{"a1", "b1", "b2", "c1", "c2", "d2"}));
}

}  // namespace
}  // namespace retroinfer::constraint
