// Strings, numbers and listed values of JSON Schemas as expressions.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "text/constraint/expression.h"
#include "text/constraint/json_syntax.h"
#include "text/constraint/limits.h"
#include "text/constraint/schema_node.h"

namespace retroinfer::constraint {

// `pointer` is the place for messages.
//
// Returns: INVALID_ARGUMENT, reason INVALID_CONSTRAINT, for a wrong pattern, and for demands that
//          are not supported together.
absl::StatusOr<ExpressionPtr> CompileString(const StringDemands& string, std::string_view pointer,
                                            JsonSyntax& json, const Limits& limits);

// `types`: some of kNumberTypes. The same errors.
absl::StatusOr<ExpressionPtr> CompileNumber(const NumberDemands& number, TypeBits types,
                                            std::string_view pointer, JsonSyntax& json);

// The values of node.values that fulfil its other demands.
//
// REQUIRES: node.values is set.
// Returns:  the same errors, where a listed value is of a type with demands that are not compared
//           with values: patterns, and those of items and properties.
absl::StatusOr<ExpressionPtr> CompileValues(const SchemaNode& node, JsonSyntax& json);

}  // namespace retroinfer::constraint
