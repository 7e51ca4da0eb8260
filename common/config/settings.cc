#include "common/config/settings.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/build_info/build_info.h"
#include "common/config/byte_size.h"
#include "common/config/config_file.h"
#include "common/config/help_format.h"
#include "common/config/option_list.h"
#include "common/config/setting_names.h"
#include "common/config/token_count.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

constexpr char kConfig[] = "config";

// The value of `flag` on a command line, in either form.
std::optional<std::string> GivenValue(const std::vector<std::string>& arguments,
                                      const std::string& flag) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (absl::StartsWith(arguments[i], flag + "=")) return arguments[i].substr(flag.size() + 1);
    if (arguments[i] == flag && i + 1 < arguments.size()) return arguments[i + 1];
  }
  return std::nullopt;
}

std::string MaybeMeant(const std::string& prefix, std::string_view name,
                       const std::vector<std::string>& names) {
  const std::string nearest = NearestName(name, names);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", prefix, nearest, "?");
}

// Whether `message` speaks of "--name".
bool Mentions(const std::string& message, const std::string& flag) {
  for (size_t at = message.find(flag); at != std::string::npos; at = message.find(flag, at + 1)) {
    const char next = at + flag.size() < message.size() ? message[at + flag.size()] : ' ';
    if (!absl::ascii_isalnum(static_cast<unsigned char>(next)) && next != '-') return true;
  }
  return false;
}

}  // namespace

bool IsGiven(const std::vector<std::string>& arguments, const std::string& flag) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    return argument == flag || argument.compare(0, flag.size() + 1, flag + "=") == 0;
  });
}

Settings::Settings(std::string description, const std::string& version)
    : app_(std::move(description)) {
  app_.option_defaults()->always_capture_default();
  app_.set_version_flag("--version", [this, version] {
    return absl::StrCat(app_.get_name(), " ", version, " (", kBuildRevision, ")");
  });
  app_.formatter(std::make_shared<HelpFormat>());
  app_.add_option("--config", config_path_, "Read settings from this file (TOML)");
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

CLI::Option* Settings::AddTokenCount(const std::string& flag, int64_t* value,
                                     const std::string& help, int64_t least) {
  constexpr int64_t kMost = int64_t{1} << 40;
  return app_
      .add_option_function<std::string>(
          flag,
          [value, flag, least](const std::string& text) {
            const auto tokens = ParseTokenCount(text, least, kMost);
            if (!tokens.ok()) {
              throw CLI::ValidationError(flag, std::string(tokens.status().message()));
            }
            *value = *tokens;
          },
          help)
      ->type_name("TOKENS")
      ->default_str(std::to_string(*value));
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

void Settings::AddCheckFlag() {
  app_.add_flag("--check-settings", checks_only_,
                "Only say what is wrong with the settings; exit code 0: nothing");
}

void Settings::NameVariable(const std::string& flag, const std::string& variable) {
  variables_[flag.substr(2)] = variable;
}

void Settings::DescribeDefault(const std::string& flag, const std::string& text) {
  if (!text.empty()) app_.get_option(flag)->default_str(text);
}

std::vector<std::string> Settings::OwnNames() const {
  std::vector<std::string> names;
  for (const CLI::Option* option : app_.get_options()) {
    if (option->get_lnames().empty()) continue;
    const std::string& name = option->get_lnames().front();
    if (name != "help" && name != "version") names.push_back(name);
  }
  return names;
}

std::string Settings::VariableOf(const std::string& name) const {
  const auto found = variables_.find(name);
  return found == variables_.end() ? VariableName(name) : found->second;
}

absl::Status Settings::AddConfig(const std::string& path, bool is_shared,
                                 std::vector<Argument>* arguments) {
  ASSIGN_OR_RETURN(const ConfigFile file, ReadConfigFile(path));
  if (!file.warning.empty()) warnings_.push_back(file.warning);
  const std::vector<std::string> names = OwnNames();
  for (const ConfigEntry& entry : file.entries) {
    const std::string place =
        absl::StrCat(path, ", line ", entry.line,
                     entry.column == 0 ? "" : absl::StrCat(", column ", entry.column));
    if (entry.name == kConfig) {
      return absl::InvalidArgumentError(absl::StrCat(place, ": a file cannot name another one"));
    }
    if (std::find(names.begin(), names.end(), entry.name) == names.end()) {
      const bool is_known = IsSettingName(entry.name);
      if (is_known && is_shared) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(place, ": there is no setting '", entry.name, "'",
                       is_known ? absl::StrCat(" of ", app_.get_name(), ", but of another program")
                                : MaybeMeant("", entry.name, names)));
    }
    for (const std::string& value : entry.values) {
      arguments->push_back({absl::StrCat("--", entry.name, "=", value), place});
    }
  }
  return absl::OkStatus();
}

absl::Status Settings::AddOutside(const std::vector<std::string>& given,
                                  std::vector<Argument>* arguments) {
  const char* const shared = std::getenv(VariableName(kConfig).c_str());
  std::vector<Argument> in_file;
  if (const auto path = GivenValue(given, "--config")) {
    RETURN_IF_ERROR(AddConfig(*path, /*is_shared=*/false, &in_file));
  } else if (shared != nullptr && *shared != '\0') {
    RETURN_IF_ERROR(AddConfig(shared, /*is_shared=*/true, &in_file));
  }
  std::set<std::string> is_set;  // beginnings of arguments
  for (const std::string& name : OwnNames()) {
    const std::string flag = "--" + name;
    if (IsGiven(given, flag)) {
      is_set.insert(flag + "=");
      continue;
    }
    const std::string variable = VariableOf(name);
    const char* const value = std::getenv(variable.c_str());
    if (value == nullptr || *value == '\0' || name == kConfig) continue;
    is_set.insert(flag + "=");
    arguments->push_back({absl::StrCat(flag, "=", value), variable});
  }
  for (Argument& argument : in_file) {
    if (is_set.contains(argument.text.substr(0, argument.text.find('=') + 1))) continue;
    arguments->push_back(std::move(argument));
  }
  return absl::OkStatus();
}

absl::Status Settings::Explain(const CLI::ParseError& error,
                               const std::vector<Argument>& outside) const {
  std::string message = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    for (const std::string& extra : app_.remaining()) {
      if (!absl::StartsWith(extra, "--")) continue;
      const std::string name = extra.substr(2, extra.find('=') - 2);
      absl::StrAppend(&message, MaybeMeant("--", name, OwnNames()));
      break;
    }
  }
  for (const Argument& argument : outside) {
    if (!Mentions(message, argument.text.substr(0, argument.text.find('=')))) continue;
    absl::StrAppend(&message, " (from ", argument.origin, ")");
    break;
  }
  // What a file means may not be what was meant.
  for (const std::string& warning : warnings_) absl::StrAppend(&message, "; ", warning);
  return absl::InvalidArgumentError(absl::StrCat(message, " (see --help)"));
}

void Settings::FindStrangeVariables() {
  std::set<std::string> own;
  for (const std::string& name : OwnNames()) own.insert(VariableOf(name));
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string name(text.substr(0, text.find('=')));
    const std::string_view value = text.substr(std::min(name.size() + 1, text.size()));
    if (own.contains(name) || IsExpectedVariable(name, value)) continue;
    const std::vector<std::string> known = KnownVariables();
    warnings_.push_back(
        absl::StrCat(name, " is no setting of any program", MaybeMeant("", name, known)));
  }
}

absl::StatusOr<Settings::Outcome> Settings::Parse(int argc, const char* const* argv) {
  const std::vector<std::string> given(argv + std::min(argc, 1), argv + argc);
  if (app_.get_name().empty() && argc > 0) {
    app_.name(std::filesystem::path(argv[0]).filename().string());
  }
  for (CLI::Option* option : app_.get_options()) {
    if (option->get_lnames().empty()) continue;
    const std::string& name = option->get_lnames().front();
    if (name == "help" || name == "version") continue;
    option->description(absl::StrCat(option->get_description(), " [", VariableOf(name), "]"));
  }
  if (given == std::vector<std::string>{kOptionListFlag}) {
    std::cout << OptionListJson(app_) << std::endl;
    return Outcome::kExit;
  }
  const bool shows = IsGiven(given, "--help") || IsGiven(given, "--version");
  std::vector<Argument> outside;
  if (!shows) RETURN_IF_ERROR(AddOutside(given, &outside));
  std::vector<std::string> arguments;
  for (const Argument& argument : outside) arguments.push_back(argument.text);
  arguments.insert(arguments.end(), given.begin(), given.end());
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app_.parse(arguments);
  } catch (const CLI::Success& success) {
    app_.exit(success, std::cout, std::cerr);
    return Outcome::kExit;
  } catch (const CLI::ParseError& error) {
    return Explain(error, outside);
  }
  FindStrangeVariables();
  return Outcome::kRun;
}

}  // namespace retroinfer::common
