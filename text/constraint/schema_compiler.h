// Compiles JSON Schemas (draft 2020-12, and what drafts from 6 on write in another way) into rules.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "text/constraint/expression.h"
#include "text/constraint/json_syntax.h"
#include "text/constraint/limits.h"

namespace retroinfer::constraint {

// Adds to `grammar` the rules of the JSON values that `schema`, a JSON text, accepts, and returns
// what calls them. docs/use/structured-output.md has the keywords.
//
// Where a keyword can be kept only in part, the texts are some of those that the schema accepts,
// never others: numbers with bounds have no exponents, additional keys have no escapes, strings of
// a pattern or a list are written in one spelling.
//
// REQUIRES: `json` writes to `grammar`.
// Returns:  INVALID_ARGUMENT, reason INVALID_CONSTRAINT, with the JSON pointer of the place, for
//           what is no schema, and for what is not supported.
absl::StatusOr<ExpressionPtr> CompileJsonSchema(std::string_view schema, const Limits& limits,
                                                Grammar& grammar, JsonSyntax& json);

}  // namespace retroinfer::constraint
