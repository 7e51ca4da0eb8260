// What all forms of constraints are translated into first: expressions over characters and bytes,
// and rules that call each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/constraint/code_point_set.h"
#include "text/constraint/text_set.h"

namespace retroinfer::constraint {

struct Expression;
using ExpressionPtr = std::shared_ptr<const Expression>;

// An edge of an automaton whose edges read texts.
struct GraphEdge {
  ExpressionPtr label;  // nullptr: reads nothing
  uint32_t target = 0;
};

struct GraphState {
  std::vector<GraphEdge> edges;
  bool accepts = false;
  // Each token of this set leads from here to a state that is flagged with the set, too.
  std::optional<TextSet> text_set = std::nullopt;
};

// A set of texts. Immutable and shared: parts may be used many times.
struct Expression {
  enum class Kind {
    kNothing,       // no text at all
    kBytes,         // one text; empty bytes are the empty text
    kCharacters,    // one character of a set
    kSequence,      // the parts one behind the other
    kAlternatives,  // one of the parts
    kRepeat,        // parts[0], `min` to `max` times
    kRule,          // the texts of a rule
    kGraph,         // what leads from state 0 to a state that accepts
  };
  static constexpr int64_t kUnbounded = -1;

  Kind kind = Kind::kNothing;
  std::string bytes;
  CodePointSet characters;
  std::vector<ExpressionPtr> parts;
  int64_t min = 0;
  int64_t max = 0;
  size_t rule = 0;
  std::vector<GraphState> states;
};

ExpressionPtr Nothing();
ExpressionPtr Empty();
ExpressionPtr Bytes(std::string_view bytes);
ExpressionPtr Characters(CodePointSet characters);
ExpressionPtr Sequence(std::vector<ExpressionPtr> parts);
ExpressionPtr Alternatives(std::vector<ExpressionPtr> parts);
// REQUIRES: 0 <= min; min <= max or max is kUnbounded.
ExpressionPtr Repeat(ExpressionPtr part, int64_t min, int64_t max = Expression::kUnbounded);
ExpressionPtr Optional(ExpressionPtr part);
ExpressionPtr CallRule(size_t rule);
// REQUIRES: state 0 exists; targets are states.
ExpressionPtr Graph(std::vector<GraphState> states);

// Rules that call each other by their index.
struct Grammar {
  struct Rule {
    std::string name;    // for messages
    ExpressionPtr body;  // nullptr while the rule is only announced
  };
  std::vector<Rule> rules;
  size_t root = 0;

  // Announces a rule, which may call itself through its index.
  size_t Add(std::string_view name);
  size_t Add(std::string_view name, ExpressionPtr body);
};

}  // namespace retroinfer::constraint
