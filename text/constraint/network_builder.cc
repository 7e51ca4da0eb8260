// A rule is translated from its end to its beginning: Build(expression, next) returns the node from
// which the expression is read and `next` is reached. Nodes of equal meaning are thereby written
// once.
#include "text/constraint/network_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "text/constraint/invalid_constraint.h"
#include "text/constraint/network_trim.h"
#include "text/constraint/node_writer.h"

namespace retroinfer::constraint {
namespace {

using Kind = Expression::Kind;

class Builder {
 public:
  Builder(const Grammar& grammar, size_t text_characters_max, const Limits& limits)
      : grammar_(grammar),
        text_characters_max_(static_cast<int64_t>(text_characters_max)),
        limits_(limits),
        writer_(limits.nodes_max),
        entries_(grammar.rules.size(), kUnknown) {}

  absl::StatusOr<Network> Run() {
    Want(grammar_.root);
    while (!wanted_.empty()) {
      const size_t rule = wanted_.back();
      wanted_.pop_back();
      entries_[rule] = Build(*grammar_.rules[rule].body, NodeWriter::kReturn);
      if (writer_.full() || steps_ > StepsMax()) {
        return InvalidConstraint("constraint",
                                 absl::StrCat("needs more than ", limits_.nodes_max,
                                              " nodes when it is compiled; lower the counts of "
                                              "repetitions, lengths and items"));
      }
    }
    std::vector<RuleEntry> rules;
    for (size_t rule = 0; rule < entries_.size(); ++rule) {
      if (entries_[rule] != kUnknown) rules.push_back({grammar_.rules[rule].name, entries_[rule]});
    }
    for (Network::Node& node : writer_.nodes()) {
      if (node.kind == Network::Kind::kCall) node.begin = entries_[node.begin];
    }
    return TrimmedNetwork(std::move(writer_.nodes()), std::move(writer_.edges()),
                          std::move(writer_.targets()), entries_[grammar_.root], rules,
                          limits_.stack_depth_max);
  }

 private:
  static constexpr NodeId kUnknown = UINT32_MAX;
  static constexpr NodeId kPending = UINT32_MAX - 1;

  // Steps that write no node are bounded, too: an empty part may be repeated a million times.
  size_t StepsMax() const { return 8 * limits_.nodes_max; }

  void Want(size_t rule) {
    if (entries_[rule] != kUnknown) return;
    entries_[rule] = kPending;
    wanted_.push_back(rule);
  }

  NodeId Build(const Expression& expression, NodeId next) {
    if (++steps_ > StepsMax() || writer_.full()) return NodeWriter::kDead;
    switch (expression.kind) {
      case Kind::kNothing:
        return NodeWriter::kDead;
      case Kind::kBytes:
        return writer_.ReadBytes(expression.bytes, next);
      case Kind::kCharacters:
        return BuildCharacters(expression.characters, next);
      case Kind::kSequence:
        for (size_t i = expression.parts.size(); i > 0; --i) {
          next = Build(*expression.parts[i - 1], next);
        }
        return next;
      case Kind::kAlternatives:
        return BuildAlternatives(expression, next);
      case Kind::kRepeat:
        return BuildRepeat(expression, next);
      case Kind::kRule:
        Want(expression.rule);
        return writer_.Call(expression.rule, next);
      case Kind::kGraph:
        return BuildGraph(expression, next);
    }
    return NodeWriter::kDead;
  }

  NodeId BuildCharacters(const CodePointSet& characters, NodeId next) {
    std::vector<NodeWriter::CharacterEdge> edges;
    for (const CodePointRange& range : characters.ranges()) edges.push_back({range, next});
    return writer_.ReadCharacters(std::move(edges));
  }

  NodeId BuildAlternatives(const Expression& expression, NodeId next) {
    std::vector<std::string_view> texts;
    std::vector<NodeId> targets;
    for (const ExpressionPtr& part : expression.parts) {
      if (part->kind == Kind::kBytes) {
        texts.push_back(part->bytes);
      } else {
        targets.push_back(Build(*part, next));
      }
    }
    steps_ += texts.size();
    if (!texts.empty()) targets.push_back(writer_.ReadOneOf(std::move(texts), next));
    return writer_.Split(targets);
  }

  NodeId BuildRepeat(const Expression& expression, NodeId next) {
    const Expression& part = *expression.parts[0];
    const bool is_text = CoversText(part, 0);
    if (expression.max == Expression::kUnbounded) {
      const NodeId loop = writer_.Announce();
      writer_.SetTargets(loop, {Build(part, loop), next});
      if (is_text) writer_.Flag(loop, BitOf(TextSet::kJsonText));
      next = loop;
    } else {
      const NodeId end = next;
      for (int64_t left = 1; left <= expression.max - expression.min; ++left) {
        if (++steps_ > StepsMax() || writer_.full()) return NodeWriter::kDead;
        next = writer_.Split({Build(part, next), end});
        FlagCounted(next, is_text, left);
      }
    }
    for (int64_t left = 1; left <= expression.min; ++left) {
      if (++steps_ > StepsMax() || writer_.full()) return NodeWriter::kDead;
      next = Build(part, next);
      const bool endless = expression.max == Expression::kUnbounded;
      FlagCounted(next, is_text,
                  endless ? text_characters_max_ : expression.max - expression.min + left);
    }
    return next;
  }

  // `left`: how many characters may still come.
  void FlagCounted(NodeId node, bool is_text, int64_t left) {
    if (is_text && left >= text_characters_max_) writer_.Flag(node, BitOf(TextSet::kJsonText));
  }

  NodeId BuildGraph(const Expression& expression, NodeId next) {
    std::vector<NodeId> nodes;
    for (const GraphState& state : expression.states) {
      nodes.push_back(writer_.Announce());
      if (state.text_set.has_value()) writer_.Flag(nodes.back(), BitOf(*state.text_set));
    }
    for (size_t i = 0; i < nodes.size() && !writer_.full(); ++i) {
      const GraphState& state = expression.states[i];
      std::vector<NodeId> targets;
      std::vector<NodeWriter::CharacterEdge> characters;
      if (state.accepts) targets.push_back(next);
      for (const GraphEdge& edge : state.edges) {
        if (edge.label == nullptr) {
          targets.push_back(nodes[edge.target]);
        } else if (edge.label->kind == Kind::kCharacters) {
          AddCharacters(edge.label->characters, nodes[edge.target], characters, targets);
        } else {
          targets.push_back(Build(*edge.label, nodes[edge.target]));
        }
      }
      targets.push_back(writer_.ReadCharacters(std::move(characters)));
      writer_.SetTargets(nodes[i], targets);
    }
    return nodes[0];
  }

  // Edges of a state that read different characters make one node.
  void AddCharacters(const CodePointSet& set, NodeId target,
                     std::vector<NodeWriter::CharacterEdge>& characters,
                     std::vector<NodeId>& targets) {
    for (const CodePointRange& range : set.ranges()) {
      const bool overlaps = std::any_of(
          characters.begin(), characters.end(), [&range](const NodeWriter::CharacterEdge& other) {
            return range.first <= other.range.last && other.range.first <= range.last;
          });
      if (overlaps) {
        targets.push_back(writer_.ReadCharacters({{range, target}}));
      } else {
        characters.push_back({range, target});
      }
    }
    steps_ += characters.size();
  }

  // Whether `part` reads any one character of TextSet::kJsonText.
  bool CoversText(const Expression& part, int depth) const {
    constexpr int kDepthMax = 3;
    static const CodePointSet* const kText = new CodePointSet(CharactersOf(TextSet::kJsonText));
    switch (part.kind) {
      case Kind::kCharacters:
        return part.characters.Includes(*kText);
      case Kind::kRule:
        return depth < kDepthMax && CoversText(*grammar_.rules[part.rule].body, depth + 1);
      case Kind::kAlternatives:
        return depth < kDepthMax &&
               std::any_of(part.parts.begin(), part.parts.end(),
                           [&](const ExpressionPtr& one) { return CoversText(*one, depth + 1); });
      default:
        return false;
    }
  }

  const Grammar& grammar_;
  const int64_t text_characters_max_;
  const Limits& limits_;
  NodeWriter writer_;
  std::vector<NodeId> entries_;  // by rule
  std::vector<size_t> wanted_;   // rules that are called and not built yet
  size_t steps_ = 0;
};

}  // namespace

absl::StatusOr<Network> BuildNetwork(const Grammar& grammar, size_t text_characters_max,
                                     const Limits& limits) {
  return Builder(grammar, text_characters_max, limits).Run();
}

}  // namespace retroinfer::constraint
