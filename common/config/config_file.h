// Files of settings: TOML.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/config_entry.h"

namespace retroinfer::common {

struct ConfigFile {
  std::vector<ConfigEntry> entries;  // in the order of the file
  std::string warning;               // what must be changed in the file; empty: nothing
};

// Parses TOML of one level: `name = value`, where a value is a string, a number, true or false, or
// a list of such. What is no such TOML, but was understood before settings were TOML
// (config_lines.h), is taken with a warning that says what to write instead.
//
// Returns: INVALID_ARGUMENT, with line and column, for anything else.
absl::StatusOr<ConfigFile> ParseConfig(std::string_view text);

// Reads and parses a file.
//
// Returns: as ParseConfig; errors of the system if it cannot be read; INVALID_ARGUMENT if it is
//          larger than 1 MiB. Messages and the warning name the file.
absl::StatusOr<ConfigFile> ReadConfigFile(const std::string& path);

}  // namespace retroinfer::common
