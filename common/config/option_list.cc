#include "common/config/option_list.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace retroinfer::common {
namespace {

// CLI11 writes a type and its check as "TEXT:{a,b}", "TEXT:value in {a->0,b->1} OR {0,1}" or
// "INT:INT in [1 - 64]".
std::vector<std::string> ChoicesOf(const std::string& type) {
  const size_t begin = type.find('{');
  const size_t end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  std::vector<std::string> choices;
  for (absl::string_view choice : absl::StrSplit(type.substr(begin + 1, end - begin - 1), ',')) {
    const size_t arrow = choice.find("->");
    choices.emplace_back(absl::StripAsciiWhitespace(choice.substr(0, arrow)));
  }
  return choices;
}

std::string KindOf(const std::string& type) {
  const std::string kind = type.substr(0, type.find(':'));
  return kind.empty() ? "TEXT" : kind;
}

nlohmann::json OptionJson(const CLI::Option& option) {
  nlohmann::json flags = nlohmann::json::array();
  for (const std::string& name : option.get_lnames()) flags.push_back("--" + name);
  for (const std::string& name : option.get_snames()) flags.push_back("-" + name);
  const std::string type = option.get_type_name();
  const bool takes_value = option.get_items_expected_max() > 0;
  // Its description ends with its variable, where it has one (see Settings::Parse).
  std::string help = option.get_description();
  std::string environment;
  if (const size_t begin = help.rfind(" [RETROINFER_"); begin != std::string::npos) {
    environment = help.substr(begin + 2, help.size() - begin - 3);
    help.resize(begin);
  }
  return {{"flags", flags},
          {"name", flags.empty() ? option.get_name() : ""},
          {"value", takes_value ? KindOf(type) : ""},
          {"choices", takes_value ? ChoicesOf(type) : std::vector<std::string>()},
          {"required", option.get_required()},
          {"default", takes_value ? option.get_default_str() : ""},
          {"group", option.get_group()},
          {"help", help},
          {"environment", environment}};
}

}  // namespace

std::string OptionListJson(const CLI::App& app) {
  nlohmann::json options = nlohmann::json::array();
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_group().empty()) options.push_back(OptionJson(*option));
  }
  return nlohmann::json{{"description", app.get_description()}, {"options", options}}.dump(1);
}

}  // namespace retroinfer::common
