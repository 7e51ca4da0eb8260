// Jinja's filters: what stands behind `|`.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "text/jinja/workspace.h"

namespace retroinfer::jinja {

using Filter = absl::StatusOr<Value> (*)(Workspace& workspace, const Value& input,
                                         const Arguments& arguments);

// nullptr if this interpreter has no such filter.
Filter FindFilter(std::string_view name);

}  // namespace retroinfer::jinja
