#include "text/tokenizer/chat_variables.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "text/jinja/json_value.h"
#include "text/jinja/printing.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer {
namespace {

using jinja::Dict;
using jinja::Text;
using jinja::Value;
using jinja::Workspace;

constexpr std::array<std::string_view, 11> kTrustedRoles = {
    "system",   "user",        "assistant", "tool",     "developer", "ipython",
    "function", "observation", "context",   "document", "documents"};

absl::Status Invalid(const std::string& place, std::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(place, ": ", std::string(problem)));
}

absl::Status CheckRole(const std::string& place, const std::string& role) {
  constexpr size_t kRoleBytesMax = 64;
  const bool well_formed = !role.empty() && role.size() <= kRoleBytesMax &&
                           std::all_of(role.begin(), role.end(), [](char c) {
                             return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                                    c == '_' || c == '-' || c == '.';
                           });
  if (well_formed) return absl::OkStatus();
  return Invalid(place, absl::StrCat("the role \"", absl::CHexEscape(role.substr(0, 100)),
                                     "\" is not 1 to 64 characters of A-Z a-z 0-9 _ - ."));
}

absl::StatusOr<Value> ParseField(Workspace& workspace, const std::string& place,
                                 std::string_view json) {
  absl::StatusOr<Value> value = jinja::ParseJson(workspace, json);
  if (absl::IsInvalidArgument(value.status())) {
    return Invalid(place, std::string(value.status().message()));
  }
  return value;
}

Value Key(std::string_view name) { return Value::OfText(Text(name, true)); }

// `dict` with another value of `key`.
absl::StatusOr<Value> WithEntry(Workspace& workspace, const Dict& dict, std::string_view key,
                                Value value) {
  std::vector<Dict::Entry> entries = dict.entries;
  entries.emplace_back(Key(key), std::move(value));
  return workspace.MakeDict(std::move(entries));
}

// One call with its arguments in the form wanted; other shapes stay as they are.
absl::StatusOr<Value> FormCall(Workspace& workspace, const Value& call, CallArgumentsForm form) {
  if (call.AsDict() == nullptr) return call;
  const Value* const function = call.AsDict()->Find("function");
  const bool nested = function != nullptr && function->AsDict() != nullptr;
  const Dict& holder = nested ? *function->AsDict() : *call.AsDict();
  const Value* const arguments = holder.Find("arguments");
  if (arguments == nullptr) return call;
  Value formed = *arguments;
  if (form == CallArgumentsForm::kObject && arguments->AsText() != nullptr) {
    const auto parsed = jinja::ParseJson(workspace, arguments->AsText()->bytes());
    if (!parsed.ok() && !absl::IsInvalidArgument(parsed.status())) return parsed.status();
    if (parsed.ok()) formed = *parsed;
  } else if (form == CallArgumentsForm::kText && arguments->AsText() == nullptr) {
    ASSIGN_OR_RETURN(Text text, jinja::ToJson(workspace, *arguments, {}));
    ASSIGN_OR_RETURN(formed, workspace.String(std::move(text)));
  }
  ASSIGN_OR_RETURN(Value changed, WithEntry(workspace, holder, "arguments", std::move(formed)));
  if (!nested) return changed;
  return WithEntry(workspace, *call.AsDict(), "function", std::move(changed));
}

absl::StatusOr<Value> ReadToolCalls(Workspace& workspace, const std::string& place,
                                    const std::string& json, CallArgumentsForm form) {
  ASSIGN_OR_RETURN(const Value calls,
                   ParseField(workspace, absl::StrCat(place, ".tool_calls"), json));
  if (calls.AsSequence() == nullptr) {
    return Invalid(absl::StrCat(place, ".tool_calls"), "must be a JSON list");
  }
  jinja::Values formed;
  for (const Value& call : calls.AsSequence()->items) {
    ASSIGN_OR_RETURN(formed.emplace_back(), FormCall(workspace, call, form));
  }
  return workspace.List(std::move(formed));
}

absl::StatusOr<Value> MakeMessage(Workspace& workspace, const std::string& place,
                                  const ChatMessage& message, bool continued,
                                  CallArgumentsForm form) {
  RETURN_IF_ERROR(CheckRole(place, message.role));
  std::vector<Dict::Entry> entries;
  const auto add = [&](std::string_view key, std::string_view text, bool trusted) -> absl::Status {
    if (absl::Status status = ValidateUtf8(text); !status.ok()) {
      return Invalid(place, std::string(status.message()));
    }
    ASSIGN_OR_RETURN(Value value, workspace.String(Text(text, trusted)));
    entries.emplace_back(Key(key), std::move(value));
    return absl::OkStatus();
  };
  const bool trusted =
      std::find(kTrustedRoles.begin(), kTrustedRoles.end(), message.role) != kTrustedRoles.end();
  RETURN_IF_ERROR(add("role", message.role, trusted));
  if (message.content_is_none && !continued) {
    entries.emplace_back(Key("content"), jinja::None());
  } else {
    std::string content = message.content;
    if (continued) content.append(kContinuationMark);
    RETURN_IF_ERROR(add("content", content, false));
  }
  if (!message.name.empty()) RETURN_IF_ERROR(add("name", message.name, false));
  if (!message.tool_call_id.empty()) {
    RETURN_IF_ERROR(add("tool_call_id", message.tool_call_id, false));
  }
  if (!message.reasoning_content.empty()) {
    RETURN_IF_ERROR(add("reasoning_content", message.reasoning_content, false));
    RETURN_IF_ERROR(add("thinking", message.reasoning_content, false));
  }
  if (!message.tool_calls.empty()) {
    ASSIGN_OR_RETURN(Value calls, ReadToolCalls(workspace, place, message.tool_calls, form));
    entries.emplace_back(Key("tool_calls"), std::move(calls));
  }
  return workspace.MakeDict(std::move(entries));
}

absl::StatusOr<Value> MakeMessages(Workspace& workspace, std::span<const ChatMessage> messages,
                                   const ChatOptions& options, CallArgumentsForm form) {
  jinja::Values values;
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool continued = options.continue_final_message && i + 1 == messages.size();
    ASSIGN_OR_RETURN(
        values.emplace_back(),
        MakeMessage(workspace, absl::StrCat("messages[", i, "]"), messages[i], continued, form));
  }
  return workspace.List(std::move(values));
}

// Adds the caller's variables; those of the server cannot be replaced.
absl::Status AddArguments(Workspace& workspace, const std::string& json,
                          jinja::Program::Variables& variables) {
  if (json.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Value arguments, ParseField(workspace, "template_arguments", json));
  if (arguments.AsDict() == nullptr) {
    return Invalid("template_arguments", "must be a JSON object");
  }
  for (const Dict::Entry& entry : arguments.AsDict()->entries) {
    const std::string& name = entry.first.AsText()->bytes();
    const auto known = std::find_if(variables.begin(), variables.end(),
                                    [&name](const auto& item) { return item.first == name; });
    if (name == "documents") {
      known->second = entry.second;
      continue;
    }
    if (known != variables.end()) {
      return Invalid("template_arguments",
                     absl::StrCat("\"", name, "\" is set by the server or by another field"));
    }
    if (name.ends_with("_token")) {
      return Invalid("template_arguments", absl::StrCat("\"", absl::CHexEscape(name.substr(0, 100)),
                                                        "\" is a special token of the model"));
    }
    variables.emplace_back(name, entry.second);
  }
  return absl::OkStatus();
}

}  // namespace

bool HasToolCalls(std::span<const ChatMessage> messages) {
  return std::any_of(messages.begin(), messages.end(),
                     [](const ChatMessage& message) { return !message.tool_calls.empty(); });
}

absl::StatusOr<jinja::Program::Variables> MakeChatVariables(Workspace& workspace,
                                                            const TokenizerConfig& config,
                                                            std::span<const ChatMessage> messages,
                                                            const ChatOptions& options,
                                                            CallArgumentsForm form) {
  if (messages.empty()) return absl::InvalidArgumentError("messages: at least one is needed");
  if (options.continue_final_message && options.add_generation_prompt.value_or(false)) {
    return absl::InvalidArgumentError(
        "continue_final_message and add_generation_prompt exclude each other: the first goes on "
        "with the last message, the second begins another");
  }
  jinja::Program::Variables variables;
  for (const auto& [name, token] : config.special_tokens) {
    variables.emplace_back(name, Value::OfText(Text(token, true)));
  }
  ASSIGN_OR_RETURN(Value conversation, MakeMessages(workspace, messages, options, form));
  variables.emplace_back("messages", std::move(conversation));
  Value tools = jinja::None();
  if (!options.tools.empty()) {
    ASSIGN_OR_RETURN(tools, ParseField(workspace, "tools", options.tools));
    if (tools.AsSequence() == nullptr) return Invalid("tools", "must be a JSON list");
    if (tools.AsSequence()->items.empty()) tools = jinja::None();
  }
  variables.emplace_back("tools", std::move(tools));
  variables.emplace_back("documents", jinja::None());
  variables.emplace_back(
      "add_generation_prompt",
      Value(options.add_generation_prompt.value_or(!options.continue_final_message)));
  if (options.enable_thinking.has_value()) {
    variables.emplace_back("enable_thinking", Value(*options.enable_thinking));
  }
  RETURN_IF_ERROR(AddArguments(workspace, options.arguments, variables));
  return variables;
}

}  // namespace retroinfer
