// A nondeterministic automaton of the expression (Thompson 1968), each state once for each number
// of characters read. Past the least length, numbers are counted only where there is a greatest
// one.
#include "text/constraint/counted_text.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/log/check.h"

namespace retroinfer::constraint {
namespace {

using Kind = Expression::Kind;

constexpr size_t kStatesMax = size_t{1} << 16;
constexpr size_t kEndless = SIZE_MAX;

size_t SaturatingAdd(size_t a, size_t b) { return a > kEndless - b ? kEndless : a + b; }

size_t SaturatingMultiply(size_t a, size_t b) {
  if (a == 0 || b == 0) return 0;
  return a > kEndless / b ? kEndless : a * b;
}

// The least and the greatest length; kEndless if there is no greatest one.
std::pair<size_t, size_t> LengthsOf(const Expression& expression) {
  std::pair<size_t, size_t> lengths = {0, 0};
  switch (expression.kind) {
    case Kind::kCharacters:
      return {1, 1};
    case Kind::kSequence:
      for (const ExpressionPtr& part : expression.parts) {
        const auto [min, max] = LengthsOf(*part);
        lengths = {SaturatingAdd(lengths.first, min), SaturatingAdd(lengths.second, max)};
      }
      return lengths;
    case Kind::kAlternatives:
      lengths.first = kEndless;
      for (const ExpressionPtr& part : expression.parts) {
        const auto [min, max] = LengthsOf(*part);
        lengths = {std::min(lengths.first, min), std::max(lengths.second, max)};
      }
      return lengths;
    case Kind::kRepeat: {
      const auto [min, max] = LengthsOf(*expression.parts[0]);
      const size_t times =
          expression.max == Expression::kUnbounded ? kEndless : static_cast<size_t>(expression.max);
      return {SaturatingMultiply(min, static_cast<size_t>(expression.min)),
              SaturatingMultiply(max, times)};
    }
    default:
      RI_CHECK(false);
  }
}

class CharacterAutomaton {
 public:
  struct Edge {
    const CodePointSet* set;  // nullptr: reads nothing
    uint32_t target;
  };

  // States are written from the end, as nodes of a network are.
  explicit CharacterAutomaton(const Expression& expression) {
    NewState();  // 0: the end
    start_ = Build(expression, 0);
  }

  bool fits() const { return states_.size() <= kStatesMax; }
  uint32_t start() const { return start_; }
  const std::vector<Edge>& EdgesOf(uint32_t state) const { return states_[state]; }

 private:
  uint32_t NewState() {
    states_.emplace_back();
    return static_cast<uint32_t>(states_.size() - 1);
  }

  uint32_t Build(const Expression& expression, uint32_t next) {
    if (!fits()) return next;
    const uint32_t state = NewState();
    switch (expression.kind) {
      case Kind::kCharacters:
        states_[state].push_back({&expression.characters, next});
        return state;
      case Kind::kSequence:
        for (size_t i = expression.parts.size(); i > 0; --i) {
          next = Build(*expression.parts[i - 1], next);
        }
        return next;
      case Kind::kAlternatives:
        for (const ExpressionPtr& part : expression.parts) {
          const uint32_t target = Build(*part, next);
          states_[state].push_back({nullptr, target});
        }
        return state;
      case Kind::kRepeat:
        return BuildRepeat(expression, next, state);
      default:
        RI_CHECK(false);
    }
  }

  uint32_t BuildRepeat(const Expression& expression, uint32_t next, uint32_t loop) {
    const Expression& part = *expression.parts[0];
    if (expression.max == Expression::kUnbounded) {
      const uint32_t body = Build(part, loop);
      states_[loop] = {{nullptr, body}, {nullptr, next}};
      next = loop;
    } else {
      const uint32_t end = next;
      for (int64_t i = expression.min; i < expression.max && fits(); ++i) {
        const uint32_t state = NewState();
        const uint32_t body = Build(part, next);
        states_[state] = {{nullptr, body}, {nullptr, end}};
        next = state;
      }
    }
    for (int64_t i = 0; i < expression.min && fits(); ++i) {
      NewState();  // an empty part is no reason to go on for ever
      next = Build(part, next);
    }
    return next;
  }

  std::vector<std::vector<Edge>> states_;
  uint32_t start_;
};

}  // namespace

bool AllWithin(const Expression& expression, const TextLengths& lengths) {
  const auto [min, max] = LengthsOf(expression);
  return min >= lengths.min && (!lengths.max.has_value() || max <= *lengths.max);
}

std::optional<ExpressionPtr> TextOfLengths(
    const Expression& expression, const TextLengths& lengths,
    const std::function<ExpressionPtr(const CodePointSet&)>& read) {
  const CharacterAutomaton automaton(expression);
  if (!automaton.fits()) return std::nullopt;
  using Key = std::pair<uint32_t, size_t>;  // a state, and the characters read
  std::vector<Key> keys;
  std::vector<GraphState> states;
  absl::flat_hash_map<Key, uint32_t> ids;
  absl::flat_hash_map<const CodePointSet*, ExpressionPtr> labels;
  const auto state_of = [&](Key key) {
    const auto [known, is_new] = ids.try_emplace(key, static_cast<uint32_t>(keys.size()));
    if (is_new) {
      keys.push_back(key);
      states.push_back({.edges = {}, .accepts = key.first == 0 && key.second >= lengths.min});
    }
    return known->second;
  };
  state_of({automaton.start(), 0});
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys.size() > kStatesMax) return std::nullopt;
    const auto [state, count] = keys[i];
    for (const CharacterAutomaton::Edge& edge : automaton.EdgesOf(state)) {
      if (edge.set == nullptr) {
        const uint32_t target = state_of({edge.target, count});
        states[i].edges.push_back({nullptr, target});
        continue;
      }
      if (lengths.max.has_value() && count >= *lengths.max) continue;
      const size_t behind = lengths.max.has_value() ? count + 1 : std::min(count + 1, lengths.min);
      const uint32_t target = state_of({edge.target, behind});
      ExpressionPtr& label = labels[edge.set];
      if (label == nullptr) label = read(*edge.set);
      states[i].edges.push_back({label, target});
    }
  }
  return Graph(std::move(states));
}

}  // namespace retroinfer::constraint
