// Compiles a grammar into a network.
#pragma once

#include "absl/status/statusor.h"
#include "text/constraint/expression.h"
#include "text/constraint/limits.h"
#include "text/constraint/network.h"

namespace retroinfer::constraint {

// `text_characters_max`: of the longest token in any TextSet. Counted text with room for so many
// characters is flagged as endless text is.
//
// REQUIRES: each rule that is called has a body.
// Returns:  INVALID_ARGUMENT, reason INVALID_CONSTRAINT, if the network needs more than
//           limits.nodes_max nodes, if a rule begins with itself, or if there is no text that the
//           grammar accepts within limits.stack_depth_max calls in each other.
// Cost:     O(nodes).
absl::StatusOr<Network> BuildNetwork(const Grammar& grammar, size_t text_characters_max,
                                     const Limits& limits);

}  // namespace retroinfer::constraint
