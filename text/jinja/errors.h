// The errors of templates: what went wrong, in three kinds.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace retroinfer::jinja {

std::string Concat(std::initializer_list<std::string_view> parts);

// INVALID_ARGUMENT: the template does not go with what it was given.
absl::Status Error(std::initializer_list<std::string_view> parts);
// UNIMPLEMENTED: Jinja has it, this interpreter does not.
absl::Status Unsupported(std::initializer_list<std::string_view> parts);
// RESOURCE_EXHAUSTED: a limit of the rendering.
absl::Status OverLimit(std::initializer_list<std::string_view> parts);

}  // namespace retroinfer::jinja
