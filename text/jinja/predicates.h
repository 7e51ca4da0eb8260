// Jinja's tests: what stands behind `is`.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "text/jinja/workspace.h"

namespace retroinfer::jinja {

using Predicate = absl::StatusOr<bool> (*)(Workspace& workspace, const Value& value,
                                           const Arguments& arguments);

// nullptr if this interpreter has no such test.
Predicate FindPredicate(std::string_view name);

}  // namespace retroinfer::jinja
