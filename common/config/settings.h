// Settings of a program: flag > environment > config file > default.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace retroinfer::common {

// Wraps a CLI::App. Each option `--some-name` can also be set by the environment variable
// RETROINFER_SOME_NAME (if not empty) and by `some-name = value` in the file that --config (or
// RETROINFER_CONFIG) names, in TOML (config_file.h). Programs share one environment: a
// variable that belongs to another program is left alone, and so are, in the file that
// RETROINFER_CONFIG names, the settings of other programs.
//
// Threads: one.
class Settings {
 public:
  enum class Outcome { kRun, kExit };  // kExit: help, version or the like was printed

  // --version prints the program's name, `version` and the commit of the build.
  Settings(std::string description, const std::string& version);

  // For options of any type that CLI11 knows; give them long names with hyphens, which must be in
  // setting_names.cc, too. Subcommands are not given environment variables.
  CLI::App& app() { return app_; }

  // Adds options in the units of people; `*value` holds the default and gets the result.
  CLI::Option* AddByteSize(const std::string& flag, uint64_t* value, const std::string& help);
  CLI::Option* AddDuration(const std::string& flag, absl::Duration* value,  // "1.5s", "200ms"
                           const std::string& help);
  // In [least, 2^40]: "131072", "128K", "1M" (token_count.h).
  CLI::Option* AddTokenCount(const std::string& flag, int64_t* value, const std::string& help,
                             int64_t least = 0);

  // Reads the option `flag` from `variable` instead, where RETROINFER_... by the flag's name would
  // mean another thing to another program.
  void NameVariable(const std::string& flag, const std::string& variable);
  // Says in the help what holds where `flag` is not given, if the option itself does not know.
  void DescribeDefault(const std::string& flag, const std::string& text);

  // Adds --check-settings, for programs that another one starts: whoever starts them learns of
  // mistakes before there is anything to take down again.
  void AddCheckFlag();

  // Parses; afterwards the variables of all options are set. For --option-list: option_list.h.
  //
  // Returns: INVALID_ARGUMENT with what is wrong, from where it came, and the name that was perhaps
  //          meant: unknown flags, bad values, a config file with errors or unknown names; errors
  //          of the system if that cannot be read.
  absl::StatusOr<Outcome> Parse(int argc, const char* const* argv);

  // Whether --check-settings was given: the program is to say what is wrong, and to end before it
  // takes memory, ports or files.
  bool checks_only() const { return checks_only_; }
  // What Parse() found strange and left alone: variables RETROINFER_... that no program knows,
  // and what is wrong in a file but was understood.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  struct Argument {
    std::string text;    // "--name=value"
    std::string origin;  // "RETROINFER_NAME", "file, line 3, column 8"
  };

  // Long names of options by which they can be set outside of the command line.
  std::vector<std::string> OwnNames() const;
  std::string VariableOf(const std::string& name) const;
  // Adds what the environment and the config file say of options that are not in `given`.
  absl::Status AddOutside(const std::vector<std::string>& given, std::vector<Argument>* arguments);
  absl::Status AddConfig(const std::string& path, bool is_shared, std::vector<Argument>* arguments);
  absl::Status Explain(const CLI::ParseError& error, const std::vector<Argument>& outside) const;
  void FindStrangeVariables();

  CLI::App app_;
  std::string config_path_;
  bool checks_only_ = false;
  std::map<std::string, std::string> variables_;  // of names that NameVariable() was told
  std::vector<std::string> warnings_;
};

// Returns whether `arguments` have `flag` ("--some-name"), followed by a value or with "=value".
bool IsGiven(const std::vector<std::string>& arguments, const std::string& flag);

}  // namespace retroinfer::common
