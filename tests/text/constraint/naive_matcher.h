// A matcher without tries, memory or sets of tokens: the texts of a network by its definition.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "text/constraint/network.h"

namespace retroinfer::constraint {

// Without a limit of depth: for short texts.
class NaiveMatcher {
 public:
  explicit NaiveMatcher(const Network& network) : network_(&network) {
    positions_ = Closed({{network.start(), {}}});
  }

  bool Advance(std::string_view bytes) {
    std::set<Position> positions = positions_;
    for (const char byte : bytes) {
      const auto value = static_cast<uint8_t>(byte);
      std::set<Position> next;
      for (const Position& position : positions) {
        const Network::Node& node = network_->node(position.first);
        if (node.kind != Network::Kind::kRead) continue;
        for (const Network::Edge& edge : network_->EdgesOf(node)) {
          if (edge.first <= value && value <= edge.last) {
            next.insert({edge.target, position.second});
          }
        }
      }
      positions = Closed(std::move(next));
    }
    if (positions.empty()) return false;
    positions_ = std::move(positions);
    return true;
  }

  bool CanEnd() const {
    return std::any_of(positions_.begin(), positions_.end(), [this](const Position& position) {
      return position.second.empty() &&
             network_->node(position.first).kind == Network::Kind::kReturn;
    });
  }

 private:
  using Position = std::pair<NodeId, std::vector<NodeId>>;

  // Keeps the nodes that read, and the end of the text.
  std::set<Position> Closed(std::set<Position> from) const {
    std::vector<Position> open(from.begin(), from.end());
    std::set<Position> seen = std::move(from);
    std::set<Position> closed;
    while (!open.empty()) {
      const auto [id, stack] = open.back();
      open.pop_back();
      const Network::Node& node = network_->node(id);
      const auto visit = [&](NodeId target, std::vector<NodeId> below) {
        Position position = {target, std::move(below)};
        if (seen.insert(position).second) open.push_back(std::move(position));
      };
      std::vector<NodeId> below = stack;
      switch (node.kind) {
        case Network::Kind::kRead:
          if (node.count > 0) closed.insert({id, stack});
          break;
        case Network::Kind::kSplit:
          for (const NodeId target : network_->TargetsOf(node)) visit(target, stack);
          break;
        case Network::Kind::kCall:
          below.push_back(node.next());
          visit(node.entry(), below);
          break;
        case Network::Kind::kReturn:
          if (stack.empty()) {
            closed.insert({id, stack});
          } else {
            below.pop_back();
            visit(stack.back(), below);
          }
          break;
      }
    }
    return closed;
  }

  const Network* network_;
  std::set<Position> positions_;
};

}  // namespace retroinfer::constraint
