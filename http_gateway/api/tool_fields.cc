#include "http_gateway/api/tool_fields.h"

#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "http_gateway/api/stable_prompt.h"

namespace retroinfer::gateway {

namespace v1 = generation::v1;

namespace {

constexpr size_t kFunctionNameMax = 64;

bool IsFunctionName(const std::string& name) {
  if (name.empty() || name.size() > kFunctionNameMax) return false;
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && std::string_view("_.-").find(c) == std::string_view::npos) {
      return false;
    }
  }
  return true;
}

absl::Status ReadFunction(Fields& fields, const std::set<std::string>& others,
                          ToolFunction* function) {
  std::optional<std::string> name;
  RETURN_IF_ERROR(fields.Read("name", &name));
  if (!name.has_value() || !IsFunctionName(*name)) {
    return ParamError(fields.PathOf("name"),
                      absl::StrCat(fields.PathOf("name"), " must be 1 to ", kFunctionNameMax,
                                   " characters of [A-Za-z0-9_.-]"));
  }
  if (others.contains(*name)) {
    return ParamError(fields.PathOf("name"), "two functions have one name");
  }
  function->name = *std::move(name);
  std::optional<bool> strict;
  RETURN_IF_ERROR(fields.Read("strict", &strict));
  function->strict = strict.value_or(false);
  const Json* const parameters = fields.Find("parameters");
  if (parameters == nullptr) return absl::OkStatus();
  if (!parameters->is_object()) {
    return ParamError(fields.PathOf("parameters"),
                      absl::StrCat(fields.PathOf("parameters"), " must be a JSON Schema"),
                      "INVALID_TYPE");
  }
  function->parameters = *parameters;
  return absl::OkStatus();
}

// Takes what is no function out of `shown`, the list that the model is told of.
absl::StatusOr<std::vector<ToolFunction>> ReadFunctions(Fields& fields, const Json& tools,
                                                        Json* shown) {
  std::vector<ToolFunction> functions;
  std::set<std::string> names;
  if (!tools.is_array()) return ParamError("tools", "tools must be a list", "INVALID_TYPE");
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = absl::StrCat("tools[", i, "]");
    ASSIGN_OR_RETURN(Fields tool, fields.Inner(tools[i], path));
    std::optional<std::string> type;
    RETURN_IF_ERROR(tool.Read("type", &type));
    const Json* const function = tool.Find("function");
    if (type != "function") {
      RETURN_IF_ERROR(fields.IgnoreOr(
          absl::StrCat(path, "(", type.value_or(""), ")"),
          ParamError(path, absl::StrCat(path, " is no function: other tools are not offered"),
                     "UNSUPPORTED_PARAMETER")));
      continue;
    }
    if (function == nullptr) {
      return ParamError(path + ".function", absl::StrCat(path, ".function is missing"),
                        "MISSING_PARAMETER");
    }
    ASSIGN_OR_RETURN(Fields inner, fields.Inner(*function, path + ".function"));
    RETURN_IF_ERROR(ReadFunction(inner, names, &functions.emplace_back()));
    names.insert(functions.back().name);
    shown->push_back(tools[i]);
  }
  return functions;
}

absl::Status ReadToolChoice(Fields& fields, ToolRequest* request) {
  const bool has_tools = !request->functions.empty();
  request->choice = has_tools ? ToolChoice::kAuto : ToolChoice::kNone;
  const Json* const choice = fields.Find("tool_choice");
  if (choice == nullptr) return absl::OkStatus();
  const auto wrong = ParamError(
      "tool_choice", "tool_choice must be \"none\", \"auto\", \"required\" or name a function");
  if (*choice == "none") {
    request->choice = ToolChoice::kNone;
  } else if (*choice == "required") {
    request->choice = ToolChoice::kRequired;
  } else if (choice->is_object()) {
    if (choice->value("type", Json()) != "function" || !choice->contains("function")) return wrong;
    const Json& function = (*choice)["function"];
    if (!function.is_object() || !function.value("name", Json()).is_string()) return wrong;
    request->choice = ToolChoice::kFunction;
    request->function = function["name"].get<std::string>();
    if (!request->Names().contains(request->function)) {
      return ParamError("tool_choice", "tool_choice names a function that is not among the tools");
    }
  } else if (*choice != "auto") {
    return wrong;
  }
  if (request->choice == ToolChoice::kRequired && !has_tools) {
    return ParamError("tool_choice", "tool_choice \"required\" needs tools");
  }
  return absl::OkStatus();
}

}  // namespace

std::set<std::string> ToolRequest::Names() const {
  std::set<std::string> names;
  for (const ToolFunction& function : functions) names.insert(function.name);
  return names;
}

absl::Status ReadTools(Fields& fields, v1::Messages* conversation, ToolRequest* request) {
  if (const Json* const tools = fields.Find("tools")) {
    Json shown = Json::array();
    ASSIGN_OR_RETURN(request->functions, ReadFunctions(fields, *tools, &shown));
    if (shown.size() < tools->size()) {
      conversation->set_tools(shown.empty() ? "" : WithoutCacheControl(shown).dump());
    }
  }
  RETURN_IF_ERROR(ReadToolChoice(fields, request));
  if (request->choice == ToolChoice::kNone) {
    request->functions.clear();
    conversation->clear_tools();
  }
  const bool forced =
      request->choice == ToolChoice::kRequired || request->choice == ToolChoice::kFunction;
  if (forced && conversation->continue_final_message()) {
    return ParamError("tool_choice", "tool_choice and continue_final_message exclude each other");
  }
  std::optional<bool> parallel;
  RETURN_IF_ERROR(fields.Read("parallel_tool_calls", &parallel));
  request->parallel = parallel.value_or(true);
  RETURN_IF_ERROR(fields.NotOffered("functions", "use tools"));
  return fields.NotOffered("function_call", "use tool_choice", "none");
}

}  // namespace retroinfer::gateway
