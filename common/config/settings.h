// Settings of a program: flag > environment > config file > default.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace retroinfer::common {

// Wraps a CLI::App. Each option `--some-name` can also be set by the environment variable
// RETROINFER_SOME_NAME (if not empty) and by `some-name=value` in the file that --config (or
// RETROINFER_CONFIG) names, in TOML/INI syntax.
//
// Threads: one.
class Settings {
 public:
  enum class Outcome { kRun, kExit };  // kExit: help, version or the like was printed

  Settings(std::string description, std::string version);

  // For options of any type that CLI11 knows; give them long names with hyphens. Subcommands are
  // not given environment variables.
  CLI::App& app() { return app_; }

  // Adds options in the units of people; `*value` holds the default and gets the result.
  CLI::Option* AddByteSize(const std::string& flag, uint64_t* value, const std::string& help);
  CLI::Option* AddDuration(const std::string& flag, absl::Duration* value,  // "1.5s", "200ms"
                           const std::string& help);

  // Parses; afterwards the variables of all options are set. For --option-list: option_list.h.
  //
  // Returns: INVALID_ARGUMENT with CLI11's message for unknown flags, bad values, a config file
  // that
  //          cannot be read or names an unknown option.
  absl::StatusOr<Outcome> Parse(int argc, const char* const* argv);

 private:
  CLI::App app_;
};

// Returns whether `arguments` have `flag` ("--some-name"), followed by a value or with "=value".
bool IsGiven(const std::vector<std::string>& arguments, const std::string& flag);

}  // namespace retroinfer::common
