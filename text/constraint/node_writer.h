// Writes the nodes of a network, equal ones once.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "text/constraint/code_point_set.h"
#include "text/constraint/network.h"

namespace retroinfer::constraint {

// Nodes are written from the end of a text to its beginning: each names those behind it. Past the
// most nodes, every method returns kDead and writes nothing.
//
// Threads: one at a time.
class NodeWriter {
 public:
  static constexpr NodeId kDead = 0;    // reads nothing
  static constexpr NodeId kReturn = 1;  // the end of each rule

  explicit NodeWriter(size_t nodes_max);

  struct CharacterEdge {
    CodePointRange range;
    NodeId target;
  };

  NodeId Read(std::vector<Network::Edge> edges);
  NodeId ReadBytes(std::string_view bytes, NodeId next);
  // REQUIRES: the ranges do not overlap.
  NodeId ReadCharacters(std::vector<CharacterEdge> edges);
  // Reads one of `texts` and goes on at `next`; common beginnings are read once.
  NodeId ReadOneOf(std::vector<std::string_view> texts, NodeId next);
  NodeId Split(const std::vector<NodeId>& targets);
  // The entry of a rule is known at the end; until then, `rule` is its place.
  NodeId Call(size_t rule, NodeId next);
  // A node whose targets are not known yet, and what makes them known.
  NodeId Announce();
  void SetTargets(NodeId node, const std::vector<NodeId>& targets);

  void Flag(NodeId node, TextSetBits sets);

  bool full() const { return full_; }
  std::vector<Network::Node>& nodes() { return nodes_; }
  std::vector<Network::Edge>& edges() { return edges_; }
  std::vector<NodeId>& targets() { return targets_; }

 private:
  struct Path;

  NodeId New(const Network::Node& node);
  NodeId ReadPaths(std::span<Path> paths, size_t depth);
  NodeId ReadSorted(std::span<const std::string_view> texts, size_t depth, NodeId next);

  size_t nodes_max_;
  bool full_ = false;
  std::vector<Network::Node> nodes_;
  std::vector<Network::Edge> edges_;
  std::vector<NodeId> targets_;
  absl::flat_hash_map<std::vector<Network::Edge>, NodeId> reads_;
};

}  // namespace retroinfer::constraint
