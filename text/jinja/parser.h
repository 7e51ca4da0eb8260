// Parses templates.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "text/jinja/syntax.h"

namespace retroinfer::jinja {

// Returns: INVALID_ARGUMENT "line N: ..." for what is no template; UNIMPLEMENTED for tags of Jinja
//          that this interpreter lacks; RESOURCE_EXHAUSTED for one that is nested too deeply.
absl::StatusOr<Statements> ParseTemplate(std::string_view source);

}  // namespace retroinfer::jinja
