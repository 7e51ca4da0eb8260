#include "common/config/config_lines.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

std::string_view Stripped(std::string_view text) {
  while (!text.empty() && absl::ascii_isspace(static_cast<unsigned char>(text.front()))) {
    text.remove_prefix(1);
  }
  while (!text.empty() && absl::ascii_isspace(static_cast<unsigned char>(text.back()))) {
    text.remove_suffix(1);
  }
  return text;
}

// Takes one value from the front of `*rest`, and the blanks behind it. A bare value ends before a
// character of `ends`.
absl::StatusOr<std::string> TakeValue(std::string_view* rest, std::string_view ends) {
  std::string value;
  if (!rest->empty() && (rest->front() == '"' || rest->front() == '\'')) {
    const size_t end = rest->find(rest->front(), 1);
    if (end == std::string_view::npos) {
      return absl::InvalidArgumentError("a quotation mark is missing at the end");
    }
    value = std::string(rest->substr(1, end - 1));
    rest->remove_prefix(end + 1);
  } else {
    const size_t end = std::min(rest->find_first_of(ends), rest->size());
    value = std::string(Stripped(rest->substr(0, end)));
    rest->remove_prefix(end);
  }
  *rest = Stripped(*rest);
  return value;
}

absl::StatusOr<std::vector<std::string>> TakeList(std::string_view* rest) {
  std::vector<std::string> values;
  rest->remove_prefix(1);
  *rest = Stripped(*rest);
  while (!rest->empty() && rest->front() != ']') {
    ASSIGN_OR_RETURN(values.emplace_back(), TakeValue(rest, ",]#"));
    if (!rest->empty() && rest->front() == ',') {
      *rest = Stripped(rest->substr(1));
    } else if (rest->empty() || rest->front() != ']') {
      break;
    }
  }
  if (rest->empty() || rest->front() != ']') {
    return absl::InvalidArgumentError("a list needs a comma between values and ']' at its end");
  }
  *rest = Stripped(rest->substr(1));
  return values;
}

absl::StatusOr<ConfigEntry> ParseLine(std::string_view text) {
  ConfigEntry entry;
  const size_t equals = text.find('=');
  std::string_view name = text.substr(0, equals);
  if (equals == std::string_view::npos) name = text.substr(0, text.find('#'));
  name = Stripped(name);
  if (name.size() > 1 && name.front() == '"' && name.back() == '"') {
    name = name.substr(1, name.size() - 2);
  }
  entry.name = std::string(name);
  if (entry.name.empty()) return absl::InvalidArgumentError("a name is missing before '='");
  if (equals == std::string_view::npos) {
    entry.values = {"true"};
    return entry;
  }
  std::string_view rest = Stripped(text.substr(equals + 1));
  if (!rest.empty() && rest.front() == '[') {
    ASSIGN_OR_RETURN(entry.values, TakeList(&rest));
  } else {
    ASSIGN_OR_RETURN(entry.values.emplace_back(), TakeValue(&rest, "#"));
  }
  if (rest.empty() || rest.front() == '#') return entry;
  return absl::InvalidArgumentError(
      absl::StrCat("what is '", std::string(rest.substr(0, 40)), "' behind the value?"));
}

}  // namespace

absl::StatusOr<std::vector<ConfigEntry>> ParseConfigLines(std::string_view text) {
  std::vector<ConfigEntry> entries;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = Stripped(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line == "[default]") continue;
    const bool is_heading = line.front() == '[' && line.find('=') == std::string_view::npos;
    absl::StatusOr<ConfigEntry> entry =
        is_heading ? absl::InvalidArgumentError(absl::StrCat("there are no sections here, but '",
                                                             std::string(line.substr(0, 40)), "'"))
                   : ParseLine(line);
    if (!entry.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": ", std::string(entry.status().message())));
    }
    entry->line = number;
    entries.push_back(*std::move(entry));
  }
  return entries;
}

}  // namespace retroinfer::common
