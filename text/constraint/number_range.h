// The numbers between two bounds, as the digits that write them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "text/constraint/decimal.h"
#include "text/constraint/expression.h"

namespace retroinfer::constraint {

struct NumberBound {
  Decimal value;
  bool is_exclusive = false;
};

struct NumberRange {
  std::optional<NumberBound> min;
  std::optional<NumberBound> max;
  // Of integers: at most 18 digits, or as many as the bounds have.
  bool is_integer = false;
  // Digits behind the point, of numbers that are no integers.
  size_t fraction_digits_max = 20;
  // Only multiples of it; 1 is all. Integers only.
  int64_t multiple_of = 1;
};

// Returns the numbers of `range` without exponents, 0 without a sign; Nothing() if there are none.
// Nothing at all if the automaton would have more than 2^16 states.
//
// REQUIRES: multiple_of >= 1, and 1 unless is_integer.
std::optional<ExpressionPtr> NumbersIn(const NumberRange& range);

}  // namespace retroinfer::constraint
