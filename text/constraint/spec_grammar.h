// All forms of a constraint as one grammar.
#pragma once

#include "absl/status/statusor.h"
#include "text/constraint/constraint_spec.h"
#include "text/constraint/expression.h"
#include "text/constraint/limits.h"
#include "text/constraint/token_vocabulary.h"

namespace retroinfer::constraint {

// Returns the grammar of `spec`, whose root also has the thoughts.
//
// Returns: INVALID_ARGUMENT, reason INVALID_CONSTRAINT, for what is malformed, not supported, or
//          over a limit.
absl::StatusOr<Grammar> GrammarOf(const ConstraintSpec& spec, const TokenVocabulary& vocabulary,
                                  const Limits& limits);

}  // namespace retroinfer::constraint
