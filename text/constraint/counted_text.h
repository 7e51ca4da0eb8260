// Texts of an expression that have a length within bounds.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include "text/constraint/expression.h"

namespace retroinfer::constraint {

// In characters.
struct TextLengths {
  size_t min = 0;
  std::optional<size_t> max;  // not set: endless
};

// Whether each text of `expression` is of such a length.
//
// REQUIRES: `expression` is of characters, sequences, alternatives and repetitions.
bool AllWithin(const Expression& expression, const TextLengths& lengths);

// Returns the texts of `expression` of such lengths, each character read by `read`. Nothing if that
// takes more than 2^16 states.
//
// REQUIRES: as AllWithin().
std::optional<ExpressionPtr> TextOfLengths(
    const Expression& expression, const TextLengths& lengths,
    const std::function<ExpressionPtr(const CodePointSet&)>& read);

}  // namespace retroinfer::constraint
