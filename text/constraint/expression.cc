#include "text/constraint/expression.h"

#include <utility>

#include "common/log/check.h"

namespace retroinfer::constraint {
namespace {

ExpressionPtr Make(Expression expression) {
  return std::make_shared<const Expression>(std::move(expression));
}

}  // namespace

ExpressionPtr Nothing() { return Make({.kind = Expression::Kind::kNothing}); }

ExpressionPtr Empty() { return Bytes(""); }

ExpressionPtr Bytes(std::string_view bytes) {
  return Make({.kind = Expression::Kind::kBytes, .bytes = std::string(bytes)});
}

ExpressionPtr Characters(CodePointSet characters) {
  return Make({.kind = Expression::Kind::kCharacters, .characters = std::move(characters)});
}

ExpressionPtr Sequence(std::vector<ExpressionPtr> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  return Make({.kind = Expression::Kind::kSequence, .parts = std::move(parts)});
}

ExpressionPtr Alternatives(std::vector<ExpressionPtr> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  return Make({.kind = Expression::Kind::kAlternatives, .parts = std::move(parts)});
}

ExpressionPtr Repeat(ExpressionPtr part, int64_t min, int64_t max) {
  RI_CHECK(min >= 0 && (max == Expression::kUnbounded || min <= max));
  Expression expression = {.kind = Expression::Kind::kRepeat, .min = min, .max = max};
  expression.parts.push_back(std::move(part));
  return Make(std::move(expression));
}

ExpressionPtr Optional(ExpressionPtr part) { return Repeat(std::move(part), 0, 1); }

ExpressionPtr CallRule(size_t rule) {
  return Make({.kind = Expression::Kind::kRule, .rule = rule});
}

ExpressionPtr Graph(std::vector<GraphState> states) {
  RI_CHECK(!states.empty());
  for (const GraphState& state : states) {
    for (const GraphEdge& edge : state.edges) RI_CHECK(edge.target < states.size());
  }
  return Make({.kind = Expression::Kind::kGraph, .states = std::move(states)});
}

size_t Grammar::Add(std::string_view name) {
  rules.push_back({std::string(name), nullptr});
  return rules.size() - 1;
}

size_t Grammar::Add(std::string_view name, ExpressionPtr body) {
  rules.push_back({std::string(name), std::move(body)});
  return rules.size() - 1;
}

}  // namespace retroinfer::constraint
