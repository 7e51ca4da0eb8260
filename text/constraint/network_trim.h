// Takes away what cannot lead to the end of a text.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "text/constraint/network.h"

namespace retroinfer::constraint {

struct RuleEntry {
  std::string name;
  NodeId entry;
};

// Computes what frames each node needs, cuts the ways to nodes that need more than `depth_max`, and
// sees to it that no rule begins with itself.
//
// Returns: INVALID_ARGUMENT, reason INVALID_CONSTRAINT, if nothing is left, or if a rule calls
//          itself before it has read a byte.
// Cost:    O(nodes + edges).
absl::StatusOr<Network> TrimmedNetwork(std::vector<Network::Node> nodes,
                                       std::vector<Network::Edge> edges,
                                       std::vector<NodeId> targets, NodeId start,
                                       const std::vector<RuleEntry>& rules, size_t depth_max);

}  // namespace retroinfer::constraint
