// Arrays and objects of JSON Schemas as expressions.
#pragma once

#include <functional>
#include <string_view>

#include "absl/status/statusor.h"
#include "text/constraint/expression.h"
#include "text/constraint/json_syntax.h"
#include "text/constraint/limits.h"
#include "text/constraint/schema_node.h"

namespace retroinfer::constraint {

// What arrays and objects need of the compiler of schemas.
struct SchemaContext {
  JsonSyntax& json;
  const Limits& limits;
  // A value that is of all schemas of a set.
  std::function<ExpressionPtr(const SchemaSet&)> call;
  // What the schemas of a set demand.
  std::function<absl::StatusOr<SchemaNode>(const SchemaSet&)> read;
};

// `pointer` is the place for messages.
//
// Returns: INVALID_ARGUMENT, reason INVALID_CONSTRAINT, for demands that are not supported
// together,
//          or that take too many states.
absl::StatusOr<ExpressionPtr> CompileArray(const ArrayDemands& array, std::string_view pointer,
                                           const SchemaContext& context);

// Listed properties come in the order of the schema; required ones that are not listed come behind
// them, and then additional ones, whose keys are none of those and have no escapes. Where
// properties are listed and nothing is said of others, there are none.
absl::StatusOr<ExpressionPtr> CompileObject(const ObjectDemands& object, std::string_view pointer,
                                            const SchemaContext& context);

}  // namespace retroinfer::constraint
