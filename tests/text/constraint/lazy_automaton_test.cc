#include "text/constraint/lazy_automaton.h"

#include <gtest/gtest.h>

#include "tests/text/constraint/grammar_texts.h"

namespace retroinfer::constraint {
namespace {

// Pairs of parentheses in each other, around an x.
Grammar Nested() {
  Grammar grammar;
  grammar.root = grammar.Add("root");
  grammar.rules[grammar.root].body =
      Alternatives({Bytes("x"), Sequence({Bytes("("), CallRule(grammar.root), Bytes(")")})});
  return grammar;
}

LazyAutomaton::StateId StateBehind(LazyAutomaton& automaton, std::string_view text) {
  LazyAutomaton::StateId state = automaton.start();
  for (const char byte : text) state = automaton.Step(state, static_cast<uint8_t>(byte));
  return state;
}

TEST(LazyAutomatonTest, EqualSetsAreOneState) {
  const Network network = NetworkOf(Repeat(Alternatives({Bytes("ab"), Bytes("cb")}), 0));
  LazyAutomaton automaton(network, {});
  EXPECT_EQ(StateBehind(automaton, "ab"), automaton.start());
  EXPECT_EQ(StateBehind(automaton, "a"), StateBehind(automaton, "abc"));
  EXPECT_TRUE(automaton.CanEnd(automaton.start()));
  EXPECT_FALSE(automaton.CanEnd(StateBehind(automaton, "a")));
  EXPECT_EQ(StateBehind(automaton, "b"), LazyAutomaton::kDead);
  EXPECT_EQ(automaton.Step(LazyAutomaton::kDead, 'a'), LazyAutomaton::kDead);
}

TEST(LazyAutomatonTest, CallsReturnToWhereTheyCameFrom) {
  const Network network = NetworkOf(Nested());
  LazyAutomaton automaton(network, {});
  EXPECT_TRUE(automaton.CanEnd(StateBehind(automaton, "((x))")));
  EXPECT_FALSE(automaton.CanGoOn(StateBehind(automaton, "((x))")));
  EXPECT_EQ(StateBehind(automaton, "((x)))"), LazyAutomaton::kDead);
  EXPECT_FALSE(automaton.CanEnd(StateBehind(automaton, "((x)")));
}

TEST(LazyAutomatonTest, DepthIsBoundedAndThereIsAlwaysAWayOut) {
  const Network network = NetworkOf(Nested());
  LazyAutomaton automaton(network, {.stack_depth_max = 3});
  EXPECT_TRUE(automaton.CanEnd(StateBehind(automaton, "(((x)))")));
  EXPECT_EQ(StateBehind(automaton, "(((("), LazyAutomaton::kDead);
}

TEST(LazyAutomatonTest, TooManyPositionsAreDead) {
  std::vector<ExpressionPtr> parts;
  for (int i = 1; i <= 20; ++i) parts.push_back(Repeat(Bytes("a"), i, i));
  Grammar grammar;
  grammar.root = grammar.Add("root", Repeat(Alternatives(std::move(parts)), 1));
  const Network network = NetworkOf(grammar);
  LazyAutomaton wide(network, {});
  LazyAutomaton narrow(network, {.positions_max = 10});
  EXPECT_NE(StateBehind(wide, "aaaa"), LazyAutomaton::kDead);
  EXPECT_EQ(StateBehind(narrow, "aaaa"), LazyAutomaton::kDead);
}

TEST(LazyAutomatonTest, AStateMovesToAnotherAutomaton) {
  const Network network = NetworkOf(Nested());
  LazyAutomaton from(network, {});
  const LazyAutomaton::StateId state = StateBehind(from, "((");
  LazyAutomaton to(network, {});
  const LazyAutomaton::StateId moved = to.Import(from, state);
  EXPECT_EQ(moved, StateBehind(to, "(("));
  EXPECT_EQ(to.Import(from, LazyAutomaton::kDead), LazyAutomaton::kDead);
  LazyAutomaton::StateId end = moved;
  for (const char byte : std::string_view("x))")) end = to.Step(end, static_cast<uint8_t>(byte));
  EXPECT_TRUE(to.CanEnd(end));
  EXPECT_GT(to.memory_bytes(), 0u);
  EXPECT_GT(to.steps(), 0u);
}

}  // namespace
}  // namespace retroinfer::constraint
