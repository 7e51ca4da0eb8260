// The error of a constraint that cannot be kept.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace retroinfer::constraint {

// Returns INVALID_ARGUMENT "<at>: <problem>", reason INVALID_CONSTRAINT, metadata "at". `at` is the
// place: a JSON pointer ("#/properties/a"), "line 3", "offset 7", or "constraint".
absl::Status InvalidConstraint(std::string_view at, std::string_view problem);

// Returns `text` for a message: cut to 60 bytes and escaped.
std::string Shown(std::string_view text);

}  // namespace retroinfer::constraint
