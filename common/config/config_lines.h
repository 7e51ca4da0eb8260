// Files of settings as they were before TOML.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/config_entry.h"

namespace retroinfer::common {

// Parses lines `name = value`: a value is bare (up to a '#', without blanks around it), in single
// or double quotes, or a list of such in brackets, on one line. A name alone stands for `name =
// true`. Empty lines and those that begin with '#' or ';' are left out, and so is the heading
// "[default]". Entries have no column.
//
// Returns: INVALID_ARGUMENT, with the number of the line, for anything else.
absl::StatusOr<std::vector<ConfigEntry>> ParseConfigLines(std::string_view text);

}  // namespace retroinfer::common
