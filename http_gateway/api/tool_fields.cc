#include "http_gateway/api/tool_fields.h"

#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

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

absl::StatusOr<std::vector<ToolFunction>> ReadFunctions(const Json& tools) {
  std::vector<ToolFunction> functions;
  std::set<std::string> names;
  if (!tools.is_array()) return ParamError("tools", "tools must be a list", "INVALID_TYPE");
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = absl::StrCat("tools[", i, "]");
    ASSIGN_OR_RETURN(Fields tool, Fields::Of(tools[i], path));
    std::optional<std::string> type, name;
    RETURN_IF_ERROR(tool.Read("type", &type));
    const Json* const function = tool.Find("function");
    if (type != "function" || function == nullptr) {
      return ParamError(path, absl::StrCat(path, " is no function: other tools are not offered"),
                        "UNSUPPORTED_PARAMETER");
    }
    ASSIGN_OR_RETURN(Fields inner, Fields::Of(*function, path + ".function"));
    RETURN_IF_ERROR(inner.Read("name", &name));
    if (!name.has_value() || !IsFunctionName(*name)) {
      return ParamError(path + ".function.name",
                        absl::StrCat(path, ".function.name must be 1 to ", kFunctionNameMax,
                                     " characters of [A-Za-z0-9_.-]"));
    }
    if (!names.insert(*name).second) {
      return ParamError(path + ".function.name", "two functions have one name");
    }
    std::optional<bool> strict;
    RETURN_IF_ERROR(inner.Read("strict", &strict));
    if (strict.value_or(false)) {
      return ParamError(path + ".function.strict",
                        "strict is not offered: what the model writes is not forced into a schema",
                        "UNSUPPORTED_PARAMETER");
    }
    ToolFunction& read = functions.emplace_back();
    read.name = *std::move(name);
    if (const Json* const parameters = inner.Find("parameters")) read.parameters = *parameters;
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
    ASSIGN_OR_RETURN(request->functions, ReadFunctions(*tools));
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
  if (forced && !conversation->has_enable_thinking()) conversation->set_enable_thinking(false);
  std::optional<bool> parallel;
  RETURN_IF_ERROR(fields.Read("parallel_tool_calls", &parallel));
  if (!parallel.value_or(true) && request->choice != ToolChoice::kNone) {
    return ParamError("parallel_tool_calls",
                      "parallel_tool_calls: false is not offered: the model decides how many calls "
                      "it makes",
                      "UNSUPPORTED_PARAMETER");
  }
  RETURN_IF_ERROR(fields.NotOffered("functions", "use tools"));
  return fields.NotOffered("function_call", "use tool_choice", "none");
}

}  // namespace retroinfer::gateway
