// Numbers as their digits, compared without rounding.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace retroinfer::constraint {

struct Decimal {
  bool is_negative = false;  // never of zero
  std::string whole = "0";   // without leading zeros
  std::string fraction;      // without trailing zeros

  bool IsZero() const { return whole == "0" && fraction.empty(); }
  bool operator==(const Decimal&) const = default;

  // Reads a number of JSON; nothing if `text` is none, or if it has over 40 digits before or behind
  // the point.
  static std::optional<Decimal> Parse(std::string_view text);
};

// Negative, 0 or positive as a < b, a == b or a > b.
int Compare(const Decimal& a, const Decimal& b);

}  // namespace retroinfer::constraint
