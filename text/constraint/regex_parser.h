// Regular expressions: what ECMA 262 and RE2 have in common.
#pragma once

#include <functional>
#include <string_view>

#include "absl/status/statusor.h"
#include "text/constraint/expression.h"
#include "text/constraint/limits.h"

namespace retroinfer::constraint {

struct RegexOptions {
  // Finds the pattern anywhere, unless ^ or $ says where; else the pattern is the whole text.
  bool is_search = false;
  // What reads one character of a set: Characters(), or a character of a JSON string.
  std::function<ExpressionPtr(const CodePointSet&)> read = &Characters;
};

// Understood: characters, `.` (no line end), classes with ranges and complements, \d \D \w \W \s
// \S, \t \n \r \f \v \0 \xHH \uHHHH \u{H..} \x{H..} and escaped punctuation, groups of all kinds
// that only group, |, * + ? {m} {m,} {m,n} greedy or lazy (which makes no difference to a set of
// texts), and ^ and $ at the ends of the pattern's alternatives. \d and \w are of ASCII.
//
// Returns: INVALID_ARGUMENT, reason INVALID_CONSTRAINT, with the offset: for back references,
//          look-around, \b, \p and flags by name; for text that is not UTF-8; and for groups deeper
//          than limits.nesting_max.
absl::StatusOr<ExpressionPtr> ParseRegex(std::string_view pattern, const RegexOptions& options,
                                         const Limits& limits);

}  // namespace retroinfer::constraint
