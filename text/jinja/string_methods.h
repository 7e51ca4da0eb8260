// The methods of Python's str.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "text/jinja/workspace.h"

namespace retroinfer::jinja {

using Method = absl::StatusOr<Value> (*)(Workspace& workspace, const Value& self,
                                         const Arguments& arguments);

// nullptr if there is no such method here.
Method FindStringMethod(std::string_view name);
// Whether Python's str has a method `name` that is missing here.
bool IsOtherStringMethod(std::string_view name);

}  // namespace retroinfer::jinja
