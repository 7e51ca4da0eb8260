#include "http_gateway/api/conversation_fields.h"

#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "http_gateway/api/reasoning_fields.h"
#include "http_gateway/api/stable_prompt.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

constexpr size_t kShownBytes = 64;  // of a word that a stranger chose

bool IsTextType(const std::string& type) {
  return type == "text" || type == "input_text" || type == "output_text";
}

bool IsThoughtType(const std::string& type) {
  return type == "thinking" || type == "redacted_thinking" || type == "reasoning";
}

// Appends the text of one part, behind a line end where it is not the first one.
absl::Status AppendPart(Fields& part, const std::string& place, bool* has_text, std::string* text) {
  std::optional<std::string> type, piece;
  RETURN_IF_ERROR(part.Read("type", &type));
  const std::string named = type.value_or("");
  if (IsThoughtType(named)) return absl::OkStatus();
  const bool is_refusal = named == "refusal";
  if (!is_refusal && !IsTextType(named)) {
    return ParamError(place,
                      absl::StrCat(place,
                                   " is no part of type \"text\": images, audio and files are not "
                                   "offered"),
                      "UNSUPPORTED_PARAMETER");
  }
  const char* const member = is_refusal ? "refusal" : "text";
  RETURN_IF_ERROR(part.Read(member, &piece));
  if (!piece.has_value()) {
    return ParamError(place, absl::StrCat(place, ".", member, " is missing"));
  }
  for (const char* const name : {kCacheControl, "annotations", "logprobs"}) part.Ignore(name);
  RETURN_IF_ERROR(part.CheckUnknown());
  if (std::exchange(*has_text, true)) text->push_back('\n');
  text->append(*piece);
  return absl::OkStatus();
}

// Leaves the content of `message` absent where it has none.
absl::Status ReadContent(Fields& fields, bool may_miss, v1::Message* message) {
  const Json* const content = fields.Find("content");
  const std::string path = fields.PathOf("content");
  if (content == nullptr) {
    if (message->tool_calls().empty()) message->set_content("");
    if (may_miss) return absl::OkStatus();
    return ParamError(path, absl::StrCat(path, " is missing"), "MISSING_PARAMETER");
  }
  if (content->is_string()) {
    message->set_content(content->get<std::string>());
    return absl::OkStatus();
  }
  if (content->is_array()) {
    ASSIGN_OR_RETURN(*message->mutable_content(), TextOfParts(*content, path, fields));
    return absl::OkStatus();
  }
  return ParamError(path, absl::StrCat(path, " must be a string or a list of parts"),
                    "INVALID_TYPE");
}

absl::Status ReadText(Fields& fields, const char* name, std::string* out) {
  std::optional<std::string> text;
  RETURN_IF_ERROR(fields.Read(name, &text));
  if (text.has_value()) *out = *std::move(text);
  return absl::OkStatus();
}

absl::Status ReadRole(Fields& fields, v1::Message* message) {
  RETURN_IF_ERROR(ReadText(fields, "role", message->mutable_role()));
  const std::string path = fields.PathOf("role");
  const std::string& role = message->role();
  if (role.empty()) {
    return ParamError(path, absl::StrCat(path, " is missing"), "MISSING_PARAMETER");
  }
  if (role == "developer") {
    message->set_role("system");
  } else if (role == "function") {
    message->set_role("tool");
  } else if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
    return ParamError(
        path, absl::StrCat(path, " is \"", absl::Utf8SafeCEscape(role.substr(0, kShownBytes)),
                           "\": it must be system, developer, user, assistant or "
                           "tool"));
  }
  return absl::OkStatus();
}

// `function_call` is what a message had before there were tools.
absl::Status ReadCalls(Fields& fields, v1::Message* message) {
  if (const Json* const calls = fields.Find("tool_calls")) {
    const std::string path = fields.PathOf("tool_calls");
    if (!calls->is_array()) {
      return ParamError(path, absl::StrCat(path, " must be a list"), "INVALID_TYPE");
    }
    if (!calls->empty()) message->set_tool_calls(WithoutCacheControl(*calls).dump());
  }
  const Json* const call = fields.Find("function_call");
  if (call == nullptr) return absl::OkStatus();
  const std::string path = fields.PathOf("function_call");
  if (!call->is_object()) {
    return ParamError(path, absl::StrCat(path, " must be an object"), "INVALID_TYPE");
  }
  if (!message->tool_calls().empty()) {
    return ParamError(path, absl::StrCat(path, " and tool_calls exclude each other"));
  }
  const Json tool_call = {{"type", "function"}, {"function", *call}};
  message->set_tool_calls(Json::array({tool_call}).dump());
  return absl::OkStatus();
}

// Of an assistant's message. Servers and clients name thoughts differently; the first name that is
// there counts.
absl::Status ReadThoughts(Fields& fields, v1::Message* message) {
  RETURN_IF_ERROR(ReadText(fields, "reasoning_content", message->mutable_reasoning_content()));
  const Json* const reasoning = fields.Find("reasoning");
  if (reasoning != nullptr && reasoning->is_string() && message->reasoning_content().empty()) {
    message->set_reasoning_content(reasoning->get<std::string>());
  }
  // The same thoughts again, signed.
  fields.Ignore("thinking_blocks");
  return absl::OkStatus();
}

absl::Status ReadMessage(const Json& json, const std::string& path, const Fields& owner,
                         v1::Message* message) {
  ASSIGN_OR_RETURN(Fields fields, owner.Inner(json, path));
  RETURN_IF_ERROR(ReadRole(fields, message));
  const bool is_assistant = message->role() == "assistant";
  if (is_assistant) {
    RETURN_IF_ERROR(ReadCalls(fields, message));
    RETURN_IF_ERROR(ReadThoughts(fields, message));
  }
  RETURN_IF_ERROR(ReadContent(fields, is_assistant, message));
  RETURN_IF_ERROR(ReadText(fields, "name", message->mutable_name()));
  if (message->role() == "tool") {
    RETURN_IF_ERROR(ReadText(fields, "tool_call_id", message->mutable_tool_call_id()));
  }
  RETURN_IF_ERROR(fields.NotOffered("audio", "the model has no such thing"));
  for (const char* const name : {"refusal", "annotations"}) {
    RETURN_IF_ERROR(fields.Hint(name, "the model has no such thing"));
  }
  fields.Ignore(kCacheControl);
  return fields.CheckUnknown();
}

}  // namespace

absl::StatusOr<std::string> TextOfParts(const Json& parts, const std::string& path,
                                        const Fields& owner) {
  std::string text;
  bool has_text = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string place = absl::StrCat(path, "[", i, "]");
    ASSIGN_OR_RETURN(Fields part, owner.Inner(parts[i], place));
    RETURN_IF_ERROR(AppendPart(part, place, &has_text, &text));
  }
  return text;
}

absl::Status ReadTemplateArguments(Fields& fields, v1::Messages* conversation) {
  const Json* const given = fields.Find("chat_template_kwargs");
  if (given == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(Fields inner, fields.Inner(*given, "chat_template_kwargs"));
  std::optional<bool> thinking;
  RETURN_IF_ERROR(inner.Read("enable_thinking", &thinking));
  if (thinking.has_value()) conversation->set_enable_thinking(*thinking);
  Json others = *given;
  others.erase("enable_thinking");
  if (!others.empty()) conversation->set_template_arguments(others.dump());
  return absl::OkStatus();
}

absl::Status ReadConversation(Fields& fields, v1::Messages* conversation) {
  const Json* const messages = fields.Find("messages");
  if (messages == nullptr) {
    return ParamError("messages", "messages is missing", "MISSING_PARAMETER");
  }
  if (!messages->is_array() || messages->empty()) {
    return ParamError("messages", "messages must be a list of at least one message",
                      messages->is_array() ? "EMPTY_PROMPT" : "INVALID_TYPE");
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    RETURN_IF_ERROR(ReadMessage((*messages)[i], absl::StrCat("messages[", i, "]"), fields,
                                conversation->add_messages()));
  }
  std::optional<bool> flag;
  RETURN_IF_ERROR(fields.Read("add_generation_prompt", &flag));
  if (flag.has_value()) conversation->set_add_generation_prompt(*flag);
  flag.reset();
  RETURN_IF_ERROR(fields.Read("continue_final_message", &flag));
  conversation->set_continue_final_message(flag.value_or(false));
  if (const Json* const tools = fields.Find("tools"); tools != nullptr && !tools->empty()) {
    conversation->set_tools(WithoutCacheControl(*tools).dump());
  }
  RETURN_IF_ERROR(ReadTemplateArguments(fields, conversation));
  return ReadReasoning(fields, conversation);
}

}  // namespace retroinfer::gateway
