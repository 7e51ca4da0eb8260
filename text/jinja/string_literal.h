// String literals of templates.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace retroinfer::jinja {

// What a literal stands for whose quotes are taken off. Escapes are Python's, but for \N{name}; an
// unknown one stays as it is written.
//
// Returns: INVALID_ARGUMENT for an escape that is no character.
absl::StatusOr<std::string> UnescapeString(std::string_view literal);

}  // namespace retroinfer::jinja
