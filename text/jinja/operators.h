// Python's operators.
#pragma once

#include "absl/status/statusor.h"
#include "text/jinja/workspace.h"

namespace retroinfer::jinja {

enum class Operator { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };

// Returns: INVALID_ARGUMENT if the types do not go together, at division by zero, and for integers
//          of more than 127 bits.
absl::StatusOr<Value> Apply(Workspace& workspace, Operator op, const Value& left,
                            const Value& right);
absl::StatusOr<Value> Negate(const Value& value);

bool IsTrue(const Value& value);
absl::StatusOr<bool> Equal(Workspace& workspace, const Value& left, const Value& right);
// Returns: INVALID_ARGUMENT if there is no order between the two.
absl::StatusOr<bool> Less(Workspace& workspace, const Value& left, const Value& right);
// Whether `item in container`.
absl::StatusOr<bool> Contains(Workspace& workspace, const Value& container, const Value& item);

// Returns INVALID_ARGUMENT if `value` cannot be the key of a dict.
absl::Status CheckKey(const Value& value);

// A number as a floating-point one; INVALID_ARGUMENT if `value` is none.
absl::StatusOr<double> ToDouble(const Value& value);

}  // namespace retroinfer::jinja
