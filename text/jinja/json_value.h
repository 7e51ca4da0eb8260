// Values from JSON.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "text/jinja/workspace.h"

namespace retroinfer::jinja {

// Returns: INVALID_ARGUMENT if `text` is no JSON, has a key twice in one object or is nested deeper
//          than 64 levels. Strings do not count as text of the template.
absl::StatusOr<Value> ParseJson(Workspace& workspace, std::string_view text);

}  // namespace retroinfer::jinja
