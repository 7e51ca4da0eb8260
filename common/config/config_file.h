// Files of settings.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace retroinfer::common {

struct ConfigEntry {
  std::string name;                 // "arena-bytes"
  std::vector<std::string> values;  // one, or those of a list
  int line = 0;                     // from 1
};

// Parses lines `name = value`: a value is bare (up to a '#', without blanks around it), in single
// or double quotes, or a list of such in brackets, on one line. A name alone stands for `name =
// true`. Empty lines and those that begin with '#' or ';' are left out, and so is the heading
// "[default]".
//
// Returns: INVALID_ARGUMENT, with the number of the line, for anything else.
absl::StatusOr<std::vector<ConfigEntry>> ParseConfig(std::string_view text);

// Reads and parses a file.
//
// Returns: as ParseConfig; errors of the system if it cannot be read; INVALID_ARGUMENT if it is
//          larger than 1 MiB. Messages name the file.
absl::StatusOr<std::vector<ConfigEntry>> ReadConfigFile(const std::string& path);

}  // namespace retroinfer::common
