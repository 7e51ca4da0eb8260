#include "common/config/settings.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/config/byte_size.h"
#include "common/config/option_list.h"

namespace retroinfer::common {
namespace {

std::string EnvironmentName(const std::string& long_name) {
  return "RETROINFER_" + absl::AsciiStrToUpper(absl::StrReplaceAll(long_name, {{"-", "_"}}));
}

}  // namespace

bool IsGiven(const std::vector<std::string>& arguments, const std::string& flag) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    return argument == flag || argument.compare(0, flag.size() + 1, flag + "=") == 0;
  });
}

Settings::Settings(std::string description, std::string version) : app_(std::move(description)) {
  app_.option_defaults()->always_capture_default();
  app_.set_version_flag("--version", std::move(version));
  app_.set_config("--config", "", "Read settings from this file (TOML or INI)");
  app_.allow_config_extras(CLI::config_extras_mode::error);
}

CLI::Option* Settings::AddByteSize(const std::string& flag, uint64_t* value,
                                   const std::string& help) {
  return app_
      .add_option_function<std::string>(
          flag,
          [value, flag](const std::string& text) {
            const auto bytes = ParseByteSize(text);
            if (!bytes.ok())
              throw CLI::ValidationError(flag, std::string(bytes.status().message()));
            *value = *bytes;
          },
          help)
      ->type_name("SIZE")
      ->default_str(FormatByteSize(*value));
}

CLI::Option* Settings::AddDuration(const std::string& flag, absl::Duration* value,
                                   const std::string& help) {
  return app_
      .add_option_function<std::string>(
          flag,
          [value, flag](const std::string& text) {
            absl::Duration duration;
            if (!absl::ParseDuration(text, &duration) || duration < absl::ZeroDuration()) {
              throw CLI::ValidationError(
                  flag,
                  absl::StrCat("'", text, "' is not a duration: write for example 10s, 200ms"));
            }
            *value = duration;
          },
          help)
      ->type_name("DURATION")
      ->default_str(absl::FormatDuration(*value));
}

absl::StatusOr<Settings::Outcome> Settings::Parse(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  // CLI11 itself would let the config file win over the environment, so values of the environment
  // become arguments.
  const std::vector<std::string> given = arguments;
  for (CLI::Option* option : app_.get_options()) {
    if (option->get_lnames().empty()) continue;
    const std::string& name = option->get_lnames().front();
    if (name == "help" || name == "version") continue;
    option->description(absl::StrCat(option->get_description(), " [", EnvironmentName(name), "]"));
    const char* value = std::getenv(EnvironmentName(name).c_str());
    if (value == nullptr || *value == '\0' || IsGiven(given, "--" + name)) continue;
    arguments.insert(arguments.begin(), absl::StrCat("--", name, "=", value));
  }
  if (given == std::vector<std::string>{kOptionListFlag}) {
    std::cout << OptionListJson(app_) << std::endl;
    return Outcome::kExit;
  }
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app_.parse(arguments);
  } catch (const CLI::Success& success) {
    app_.exit(success, std::cout, std::cerr);
    return Outcome::kExit;
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(absl::StrCat(error.what(), " (see --help)"));
  }
  return Outcome::kRun;
}

}  // namespace retroinfer::common
