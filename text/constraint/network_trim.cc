// need(node) is the least number of frames that are on the stack at once, of those pushed from the
// node to the end of its rule: 0 for a return, the least of what follows for a read or a split, and
// max(1 + need(entry), need(next)) for a call, or need(entry) if the call is the last of its rule,
// since that pushes nothing. Nodes are settled in the order of their needs, as Dijkstra's algorithm
// settles distances.
#include "text/constraint/network_trim.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "text/constraint/invalid_constraint.h"

namespace retroinfer::constraint {
namespace {

using Kind = Network::Kind;

constexpr uint32_t kInfinite = UINT32_MAX;

class Trimmer {
 public:
  Trimmer(std::vector<Network::Node> nodes, std::vector<Network::Edge> edges,
          std::vector<NodeId> targets, const std::vector<RuleEntry>& rules, size_t depth_max)
      : nodes_(std::move(nodes)),
        edges_(std::move(edges)),
        targets_(std::move(targets)),
        rules_(rules),
        depth_max_(depth_max),
        is_empty_(nodes_.size(), false) {
    LinkBack();
  }

  absl::StatusOr<Network> Run(NodeId start) {
    FindNeeds();
    if (nodes_[start].need == kInfinite) {
      return InvalidConstraint(
          "constraint", absl::StrCat("accepts no text, at least none with at most ", depth_max_,
                                     " rules in each other"));
    }
    Cut();
    FindEmpty();
    RETURN_IF_ERROR(RefuseLeftRecursion());
    return Network(std::move(nodes_), std::move(edges_), std::move(targets_), start);
  }

 private:
  template <typename Visit>
  void ForSuccessors(const Network::Node& node, const Visit& visit) const {
    switch (node.kind) {
      case Kind::kRead:
        for (size_t i = node.begin; i < size_t{node.begin} + node.count; ++i) {
          visit(edges_[i].target);
        }
        break;
      case Kind::kSplit:
        for (size_t i = node.begin; i < size_t{node.begin} + node.count; ++i) visit(targets_[i]);
        break;
      case Kind::kCall:
        visit(node.entry());
        visit(node.next());
        break;
      case Kind::kReturn:
        break;
    }
  }

  void LinkBack() {
    first_back_.assign(nodes_.size() + 1, 0);
    for (const Network::Node& node : nodes_) {
      ForSuccessors(node, [this](NodeId to) { ++first_back_[to + 1]; });
    }
    for (size_t i = 1; i < first_back_.size(); ++i) first_back_[i] += first_back_[i - 1];
    back_.resize(first_back_.back());
    std::vector<uint32_t> end = first_back_;
    for (NodeId id = 0; id < nodes_.size(); ++id) {
      ForSuccessors(nodes_[id], [&](NodeId to) { back_[end[to]++] = id; });
    }
  }

  bool IsLast(const Network::Node& call) const { return nodes_[call.next()].kind == Kind::kReturn; }

  // What is known of the need of `node`, given those of what follows.
  uint32_t NeedOf(const Network::Node& node) const {
    if (node.kind == Kind::kReturn) return 0;
    if (node.kind == Kind::kCall) {
      const uint32_t entry = nodes_[node.entry()].need;
      const uint32_t next = nodes_[node.next()].need;
      if (entry == kInfinite || next == kInfinite) return kInfinite;
      return IsLast(node) ? entry : std::max(entry + 1, next);
    }
    uint32_t need = kInfinite;
    ForSuccessors(node, [&](NodeId to) { need = std::min(need, nodes_[to].need); });
    return need;
  }

  void FindNeeds() {
    std::vector<std::vector<NodeId>> by_need(depth_max_ + 1);
    for (NodeId id = 0; id < nodes_.size(); ++id) {
      nodes_[id].need = kInfinite;
      if (nodes_[id].kind == Kind::kReturn) by_need[0].push_back(id);
    }
    for (uint32_t need = 0; need <= depth_max_; ++need) {
      for (size_t i = 0; i < by_need[need].size(); ++i) {
        const NodeId id = by_need[need][i];
        if (nodes_[id].need != kInfinite) continue;
        nodes_[id].need = need;
        for (uint32_t j = first_back_[id]; j < first_back_[id + 1]; ++j) {
          const Network::Node& from = nodes_[back_[j]];
          if (from.need != kInfinite) continue;
          // Of a read or a split the first successor that is settled decides.
          const uint32_t known = from.kind == Kind::kCall ? NeedOf(from) : need;
          if (known <= depth_max_) by_need[known].push_back(back_[j]);
        }
      }
    }
  }

  void Cut() {
    for (Network::Node& node : nodes_) {
      const auto is_dead = [this](NodeId to) { return nodes_[to].need == kInfinite; };
      if (node.kind == Kind::kRead) {
        const auto begin = edges_.begin() + node.begin;
        const auto end =
            std::stable_partition(begin, begin + node.count,
                                  [&](const Network::Edge& edge) { return !is_dead(edge.target); });
        node.count = static_cast<uint32_t>(end - begin);
      } else if (node.kind == Kind::kSplit) {
        const auto begin = targets_.begin() + node.begin;
        const auto end = std::stable_partition(begin, begin + node.count,
                                               [&](NodeId to) { return !is_dead(to); });
        node.count = static_cast<uint32_t>(end - begin);
      }
    }
  }

  // Finds the nodes from which a rule can end without a byte.
  void FindEmpty() {
    std::vector<NodeId> found;
    for (NodeId id = 0; id < nodes_.size(); ++id) {
      if (nodes_[id].kind == Kind::kReturn) found.push_back(id);
    }
    while (!found.empty()) {
      const NodeId id = found.back();
      found.pop_back();
      if (is_empty_[id]) continue;
      is_empty_[id] = true;
      for (uint32_t j = first_back_[id]; j < first_back_[id + 1]; ++j) {
        const Network::Node& from = nodes_[back_[j]];
        if (from.kind == Kind::kSplit ||
            (from.kind == Kind::kCall && is_empty_[from.entry()] && is_empty_[from.next()])) {
          found.push_back(back_[j]);
        }
      }
    }
  }

  // The rules that the rule at `entry` may call before it has read a byte.
  std::vector<NodeId> FirstCalls(NodeId entry) {
    std::vector<NodeId> calls;
    std::vector<NodeId> open = {entry};
    ++round_;
    while (!open.empty()) {
      const NodeId id = open.back();
      open.pop_back();
      if (nodes_[id].need == kInfinite || seen_[id] == round_) continue;
      seen_[id] = round_;
      const Network::Node& node = nodes_[id];
      if (node.kind == Kind::kSplit) {
        ForSuccessors(node, [&open](NodeId to) { open.push_back(to); });
      } else if (node.kind == Kind::kCall) {
        calls.push_back(node.entry());
        if (is_empty_[node.entry()]) open.push_back(node.next());
      }
    }
    return calls;
  }

  absl::Status RefuseLeftRecursion() {
    seen_.assign(nodes_.size(), 0);
    absl::flat_hash_map<NodeId, size_t> rule_at;
    for (size_t rule = 0; rule < rules_.size(); ++rule) rule_at.emplace(rules_[rule].entry, rule);
    enum class State : uint8_t { kNew, kOpen, kDone };
    std::vector<State> states(rules_.size(), State::kNew);
    struct Visit {
      size_t rule;
      std::vector<NodeId> calls;
    };
    std::vector<Visit> path;
    for (size_t first = 0; first < rules_.size(); ++first) {
      if (states[first] != State::kNew) continue;
      path.push_back({first, FirstCalls(rules_[first].entry)});
      states[first] = State::kOpen;
      while (!path.empty()) {
        if (path.back().calls.empty()) {
          states[path.back().rule] = State::kDone;
          path.pop_back();
          continue;
        }
        const size_t rule = rule_at.at(path.back().calls.back());
        path.back().calls.pop_back();
        if (states[rule] == State::kOpen) {
          return InvalidConstraint(rules_[rule].name,
                                   "begins with itself (left recursion); write the repetition as "
                                   "( ... )* or put a text before the call");
        }
        if (states[rule] == State::kDone) continue;
        states[rule] = State::kOpen;
        path.push_back({rule, FirstCalls(rules_[rule].entry)});
      }
    }
    return absl::OkStatus();
  }

  std::vector<Network::Node> nodes_;
  std::vector<Network::Edge> edges_;
  std::vector<NodeId> targets_;
  const std::vector<RuleEntry>& rules_;
  const size_t depth_max_;
  // The nodes from which a node is reached: back_[first_back_[id]..first_back_[id + 1]].
  std::vector<uint32_t> first_back_;
  std::vector<NodeId> back_;
  std::vector<bool> is_empty_;
  std::vector<uint32_t> seen_;
  uint32_t round_ = 0;
};

}  // namespace

absl::StatusOr<Network> TrimmedNetwork(std::vector<Network::Node> nodes,
                                       std::vector<Network::Edge> edges,
                                       std::vector<NodeId> targets, NodeId start,
                                       const std::vector<RuleEntry>& rules, size_t depth_max) {
  return Trimmer(std::move(nodes), std::move(edges), std::move(targets), rules, depth_max)
      .Run(start);
}

}  // namespace retroinfer::constraint
