// A constraint compiled: a recursive transition network over bytes (Woods 1970), a finite automaton
// whose edges may also call rules.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "text/constraint/text_set.h"

namespace retroinfer::constraint {

using NodeId = uint32_t;

// From each node that can be reached, the end of the text can be reached, too.
//
// Threads: immutable after construction.
class Network {
 public:
  enum class Kind : uint8_t {
    kRead,    // reads one byte along one of its edges; without edges, a dead end
    kSplit,   // goes on at each of its targets
    kCall,    // runs the rule that begins at `entry`, and goes on at `next`
    kReturn,  // the end of a rule: goes on behind the call, or the text may end
  };
  struct Edge {
    uint8_t first;
    uint8_t last;
    NodeId target;
    bool operator==(const Edge&) const = default;
    template <typename H>
    friend H AbslHashValue(H hash, const Edge& edge) {
      return H::combine(std::move(hash), edge.first, edge.last, edge.target);
    }
  };
  struct Node {
    Kind kind = Kind::kRead;
    // Sets whose tokens lead from here to nodes with the same flag.
    TextSetBits text_sets = 0;
    // Frames that a text needs at least, from here to the end of the rule.
    uint32_t need = 0;
    uint32_t begin = 0;  // kRead: into the edges; kSplit: into the targets; kCall: `entry`
    uint32_t count = 0;  // kRead, kSplit: how many; kCall: `next`
    NodeId entry() const { return begin; }
    NodeId next() const { return count; }
  };

  // REQUIRES: ids and ranges are valid.
  Network(std::vector<Node> nodes, std::vector<Edge> edges, std::vector<NodeId> targets,
          NodeId start);

  NodeId start() const { return start_; }
  const Node& node(NodeId id) const { return nodes_[id]; }
  std::span<const Edge> EdgesOf(const Node& node) const {
    return std::span(edges_).subspan(node.begin, node.count);
  }
  std::span<const NodeId> TargetsOf(const Node& node) const {
    return std::span(targets_).subspan(node.begin, node.count);
  }
  size_t num_nodes() const { return nodes_.size(); }
  size_t memory_bytes() const;

  // Bytes of one class are read by the same edges everywhere.
  uint8_t ClassOf(uint8_t byte) const { return byte_classes_[byte]; }
  size_t num_classes() const { return num_classes_; }

 private:
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<NodeId> targets_;
  NodeId start_;
  std::array<uint8_t, 256> byte_classes_;
  size_t num_classes_;
};

}  // namespace retroinfer::constraint
