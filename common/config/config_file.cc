#include "common/config/config_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/config/config_lines.h"
#include "common/files/regular_file.h"
#include "common/files/toml_text.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

constexpr size_t kBytesMax = 1 << 20;

// What is wrong, and where.
struct TomlError {
  int line = 0;
  std::string message;  // "line 3, column 7: ..."
};

TomlError ErrorAt(const toml::source_region& where, std::string_view message) {
  const auto line = static_cast<int>(where.begin.line);
  return {line, absl::StrCat("line ", line, ", column ", static_cast<int>(where.begin.column), ": ",
                             std::string(message))};
}

// A number, a string or a truth value as the command line has it; nothing for other kinds.
std::optional<std::string> TextOf(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto truth = node.value_exact<bool>()) return *truth ? "true" : "false";
  if (const auto whole = node.value_exact<int64_t>()) return absl::StrCat(*whole);
  if (const auto number = node.value_exact<double>()) {
    std::array<char, 64> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), *number).ptr;
    return std::string(digits.data(), end);
  }
  return std::nullopt;
}

// Appends an entry; returns what is wrong with it.
std::optional<TomlError> AddEntry(const std::string& name, const toml::node& node,
                                  std::vector<ConfigEntry>* entries) {
  ConfigEntry entry = {.name = name,
                       .line = static_cast<int>(node.source().begin.line),
                       .column = static_cast<int>(node.source().begin.column)};
  if (name.empty()) return ErrorAt(node.source(), "a name is missing before '='");
  if (node.is_table() || node.is_array_of_tables()) {
    return ErrorAt(node.source(), absl::StrCat("there are no sections here, but '", name, "'"));
  }
  if (const toml::array* const list = node.as_array()) {
    for (const toml::node& value : *list) {
      const std::optional<std::string> text = TextOf(value);
      if (!text.has_value()) {
        return ErrorAt(value.source(), absl::StrCat(name,
                                                    " has a value in its list that is no "
                                                    "string, number, true or false"));
      }
      entry.values.push_back(*text);
    }
  } else if (const std::optional<std::string> text = TextOf(node)) {
    entry.values = {*text};
  } else {
    return ErrorAt(node.source(),
                   absl::StrCat(name, " must be a string, a number, true, false, or a list"));
  }
  entries->push_back(std::move(entry));
  return std::nullopt;
}

// Returns what keeps the text from being settings in TOML.
std::optional<TomlError> ParseToml(std::string_view text, std::vector<ConfigEntry>* entries) {
  if (const absl::Status status = CheckTomlCharacters(text); !status.ok()) {
    return TomlError{0, std::string(status.message())};
  }
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) return ErrorAt(parsed.error().source(), parsed.error().description());
  for (const auto& [name, node] : parsed.table()) {
    if (auto error = AddEntry(std::string(name.str()), node, entries)) return error;
  }
  std::ranges::stable_sort(*entries, [](const ConfigEntry& a, const ConfigEntry& b) {
    return std::pair(a.line, a.column) < std::pair(b.line, b.column);
  });
  return std::nullopt;
}

std::string Quoted(const std::string& value) {
  return absl::StrCat("\"", absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

// The entry as TOML has it.
std::string TomlLine(const ConfigEntry& entry) {
  if (entry.values == std::vector<std::string>{"true"}) return absl::StrCat(entry.name, " = true");
  std::vector<std::string> quoted;
  for (const std::string& value : entry.values) quoted.push_back(Quoted(value));
  const std::string values = absl::StrJoin(quoted, ", ");
  return absl::StrCat(entry.name, " = ",
                      quoted.size() == 1 ? values : absl::StrCat("[", values, "]"));
}

// How to mend the line of the error: what it means, in TOML.
std::string Mending(const TomlError& error, const std::vector<ConfigEntry>& entries) {
  for (const ConfigEntry& entry : entries) {
    if (entry.line == error.line) return absl::StrCat("write it as: ", TomlLine(entry));
  }
  return "put values into quotation marks, comments behind '#', and take headings out";
}

}  // namespace

absl::StatusOr<ConfigFile> ParseConfig(std::string_view text) {
  ConfigFile file;
  const std::optional<TomlError> error = ParseToml(text, &file.entries);
  if (!error.has_value()) return file;
  absl::StatusOr<std::vector<ConfigEntry>> former = ParseConfigLines(text);
  if (!former.ok()) return absl::InvalidArgumentError(error->message);
  file.entries = *std::move(former);
  file.warning = absl::StrCat(error->message,
                              "; settings are TOML now, and such lines will not be understood for "
                              "ever: ",
                              Mending(*error, file.entries));
  return file;
}

absl::StatusOr<ConfigFile> ReadConfigFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadNamedFile(path, kBytesMax);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        absl::StrCat("the config file: ", std::string(text.status().message())));
  }
  absl::StatusOr<ConfigFile> file = ParseConfig(*text);
  if (!file.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ", ", std::string(file.status().message())));
  }
  if (!file->warning.empty()) file->warning = absl::StrCat(path, ", ", file->warning);
  return file;
}

}  // namespace retroinfer::common
