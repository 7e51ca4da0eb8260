#include "http_gateway/api/response_input.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "http_gateway/api/conversation_builder.h"
#include "http_gateway/api/conversation_fields.h"
#include "http_gateway/api/stable_prompt.h"

namespace retroinfer::gateway {
namespace {

constexpr size_t kShownBytes = 64;  // of a word that a stranger chose

absl::Status Missing(const std::string& path) {
  return ParamError(path, absl::StrCat(path, " is missing"), "MISSING_PARAMETER");
}

absl::StatusOr<std::string> ReadRequired(Fields& item, const char* name) {
  std::optional<std::string> text;
  RETURN_IF_ERROR(item.Read(name, &text));
  if (!text.has_value()) return Missing(item.PathOf(name));
  return *std::move(text);
}

// A text, or a list of parts.
absl::StatusOr<std::string> ReadTextOrParts(Fields& item, const char* name) {
  const Json* const value = item.Find(name);
  const std::string path = item.PathOf(name);
  if (value == nullptr) return Missing(path);
  if (value->is_string()) return value->get<std::string>();
  if (value->is_array()) return TextOfParts(*value, path, item);
  return ParamError(path, absl::StrCat(path, " must be a string or a list of parts"),
                    "INVALID_TYPE");
}

absl::Status AddMessage(Fields& item, ConversationBuilder* builder) {
  ASSIGN_OR_RETURN(std::string role, ReadRequired(item, "role"));
  ASSIGN_OR_RETURN(std::string text, ReadTextOrParts(item, "content"));
  if (role == "assistant") {
    builder->AddAnswer(text);
  } else if (role == "system" || role == "developer") {
    builder->AddMessage("system", std::move(text));
  } else if (role == "user") {
    builder->AddMessage("user", std::move(text));
  } else {
    return ParamError(
        item.PathOf("role"),
        absl::StrCat(item.PathOf("role"), " must be user, assistant, system or developer"));
  }
  item.Ignore("phase");
  return absl::OkStatus();
}

// The text of `content`, or, where there is none, of `summary`. Both are lists of objects with a
// `text`.
absl::Status AddReasoning(Fields& item, ConversationBuilder* builder) {
  std::string thoughts;
  for (const char* const name : {"content", "summary"}) {
    const Json* const parts = item.Find(name);
    if (parts == nullptr || !thoughts.empty()) continue;
    if (!parts->is_array()) {
      return ParamError(item.PathOf(name), absl::StrCat(item.PathOf(name), " must be a list"),
                        "INVALID_TYPE");
    }
    for (size_t i = 0; i < parts->size(); ++i) {
      ASSIGN_OR_RETURN(Fields part,
                       item.Inner((*parts)[i], absl::StrCat(item.PathOf(name), "[", i, "]")));
      std::optional<std::string> text;
      RETURN_IF_ERROR(part.Read("text", &text));
      if (!thoughts.empty()) thoughts.push_back('\n');
      thoughts.append(text.value_or(""));
    }
  }
  if (!thoughts.empty()) builder->AddThoughts(thoughts);
  item.Ignore("encrypted_content");  // of another server
  return absl::OkStatus();
}

// `input`: what a call has whose function takes a text.
absl::Status AddCall(Fields& item, const char* input, ConversationBuilder* builder) {
  ASSIGN_OR_RETURN(const std::string id, ReadRequired(item, "call_id"));
  ASSIGN_OR_RETURN(const std::string name, ReadRequired(item, "name"));
  ASSIGN_OR_RETURN(std::string given, ReadRequired(item, input));
  const bool is_text = std::string_view(input) == "input";
  builder->AddCall(id, name, is_text ? Json{{"input", std::move(given)}} : Json(std::move(given)));
  item.Ignore("namespace");
  return absl::OkStatus();
}

absl::Status AddResult(Fields& item, ConversationBuilder* builder) {
  ASSIGN_OR_RETURN(const std::string id, ReadRequired(item, "call_id"));
  ASSIGN_OR_RETURN(std::string text, ReadTextOrParts(item, "output"));
  builder->AddResult(id, std::move(text));
  return absl::OkStatus();
}

absl::Status AddItem(Fields& item, const std::string& path, ConversationBuilder* builder) {
  std::optional<std::string> type;
  RETURN_IF_ERROR(item.Read("type", &type));
  for (const char* const name : {"id", "status", kCacheControl}) item.Ignore(name);
  const std::string kind = type.value_or("message");
  if (kind == "message") {
    RETURN_IF_ERROR(AddMessage(item, builder));
  } else if (kind == "reasoning") {
    RETURN_IF_ERROR(AddReasoning(item, builder));
  } else if (kind == "function_call") {
    RETURN_IF_ERROR(AddCall(item, "arguments", builder));
  } else if (kind == "custom_tool_call") {
    RETURN_IF_ERROR(AddCall(item, "input", builder));
  } else if (kind == "function_call_output" || kind == "custom_tool_call_output") {
    RETURN_IF_ERROR(AddResult(item, builder));
  } else {
    return ParamError(
        path + ".type",
        absl::StrCat(path, " is of the type \"", absl::Utf8SafeCEscape(kind.substr(0, kShownBytes)),
                     "\", which is not offered: messages, reasoning and calls of "
                     "functions are"),
        "UNSUPPORTED_PARAMETER");
  }
  return item.CheckUnknown();
}

}  // namespace

absl::Status ReadResponseInput(Fields& fields, generation::v1::Messages* conversation) {
  ConversationBuilder builder(conversation);
  std::optional<std::string> instructions;
  RETURN_IF_ERROR(fields.Read("instructions", &instructions));
  if (!instructions.value_or("").empty()) builder.AddMessage("system", *std::move(instructions));
  const Json* const input = fields.Find("input");
  if (input == nullptr) return Missing("input");
  if (input->is_string()) {
    builder.AddMessage("user", input->get<std::string>());
    return absl::OkStatus();
  }
  if (!input->is_array() || input->empty()) {
    return ParamError("input", "input must be a string or a list of at least one item",
                      input->is_array() ? "EMPTY_PROMPT" : "INVALID_TYPE");
  }
  for (size_t i = 0; i < input->size(); ++i) {
    const std::string path = absl::StrCat("input[", i, "]");
    ASSIGN_OR_RETURN(Fields item, fields.Inner((*input)[i], path));
    RETURN_IF_ERROR(AddItem(item, path, &builder));
  }
  builder.Finish();
  return absl::OkStatus();
}

}  // namespace retroinfer::gateway
