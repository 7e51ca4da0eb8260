#include "common/config/help_format.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace retroinfer::common {
namespace {

constexpr size_t kColumns = 80;
constexpr size_t kTextColumn = 30;

std::vector<std::string> Split(const std::string& text, char at) {
  return absl::StrSplit(text, at);
}

// CLI11 describes the values of an option behind the name of its type: "TEXT:{auto,cpu}", or with
// names for numbers "ENUM:value in {off->0,on->1} OR {0,1}". Returns "auto, cpu"; empty: any value.
std::string Choices(const std::string& type) {
  const size_t begin = type.find('{');
  if (begin == std::string::npos) return "";
  const size_t end = std::min(type.find('}', begin), type.size());
  std::vector<std::string> names;
  for (const std::string& value : Split(type.substr(begin + 1, end - begin - 1), ',')) {
    names.push_back(value.substr(0, value.find("->")));
  }
  return absl::StrJoin(names, ", ");
}

// "INT:INT in [1 - 1024]": "1 to 1024"; empty: no range.
std::string Range(const std::string& type) {
  const size_t begin = type.find(" in [");
  const size_t end = type.find(']');
  if (begin == std::string::npos || end == std::string::npos) return "";
  return absl::StrReplaceAll(type.substr(begin + 5, end - begin - 5), {{" - ", " to "}});
}

std::string TypeName(const CLI::Option& option) {
  if (option.get_type_size() == 0) return "";
  const std::string type = option.get_type_name();
  const std::string name = type.substr(0, type.find(':'));
  return name == "ENUM" ? " TEXT" : " " + name;
}

std::string Details(const CLI::Option& option) {
  std::vector<std::string> details;
  if (option.get_type_size() != 0) {
    const std::string type = option.get_type_name();
    if (const std::string choices = Choices(type); !choices.empty()) {
      details.push_back(absl::StrCat("[", choices, "]"));
    } else if (const std::string range = Range(type); !range.empty()) {
      details.push_back(absl::StrCat("[", range, "]"));
    }
    std::string value = option.get_default_str();
    if (absl::StartsWith(value, "[")) {  // a list
      value = absl::StrReplaceAll(value, {{"[", ""}, {"]", ""}, {"\"", ""}});
    }
    if (option.get_required()) {
      details.push_back("[required]");
    } else if (!value.empty()) {
      details.push_back(absl::StrCat("[default: ", value, "]"));
    }
  }
  return absl::StrJoin(details, " ");
}

}  // namespace

std::string WrapText(const std::string& text, size_t columns, size_t indent) {
  std::string out;
  size_t column = indent;
  bool first_line = true;
  for (const std::string& line : Split(text, '\n')) {
    if (!first_line) {
      absl::StrAppend(&out, "\n", std::string(indent, ' '));
      column = indent;
    }
    first_line = false;
    // Blanks at the beginning of a line are meant.
    const size_t lead = std::min(line.find_first_not_of(' '), line.size());
    out.append(lead, ' ');
    column += lead;
    bool first_word = true;
    for (const std::string& word : Split(line, ' ')) {
      if (word.empty()) continue;
      if (!first_word && column + 1 + word.size() > columns) {
        absl::StrAppend(&out, "\n", std::string(indent, ' '));
        column = indent;
      } else if (!first_word) {
        out += ' ';
        ++column;
      }
      out += word;
      column += word.size();
      first_word = false;
    }
  }
  return out;
}

std::string HelpFormat::make_option(const CLI::Option* option, bool is_positional) const {
  std::string left = absl::StrCat("  ", make_option_name(option, is_positional), TypeName(*option));
  if (left.size() + 1 < kTextColumn) {
    left.resize(kTextColumn, ' ');
  } else {
    absl::StrAppend(&left, "\n", std::string(kTextColumn, ' '));
  }
  std::string text = option->get_description();
  const std::string details = Details(*option);
  if (!details.empty()) absl::StrAppend(&text, text.empty() ? "" : " ", details);
  return absl::StrCat(left, WrapText(text, kColumns, kTextColumn), "\n");
}

std::string HelpFormat::make_description(const CLI::App* app) const {
  const std::string text = CLI::Formatter::make_description(app);
  return WrapText(text, kColumns, 0);
}

std::string HelpFormat::make_footer(const CLI::App* app) const {
  return WrapText(CLI::Formatter::make_footer(app), kColumns, 0);
}

}  // namespace retroinfer::common
