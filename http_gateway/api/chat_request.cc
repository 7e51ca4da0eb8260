#include "http_gateway/api/chat_request.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "http_gateway/api/constraint_fields.h"
#include "http_gateway/api/stable_prompt.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

constexpr int64_t kTopLogprobsMax = 20;

absl::StatusOr<std::string> TextOfParts(const Json& parts, const std::string& path) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string place = absl::StrCat(path, "[", i, "]");
    ASSIGN_OR_RETURN(Fields part, Fields::Of(parts[i], place));
    std::optional<std::string> type, piece;
    RETURN_IF_ERROR(part.Read("type", &type));
    if (type != "text") {
      return ParamError(place,
                        absl::StrCat(place,
                                     " is no part of type \"text\": images, audio and files "
                                     "are not offered"),
                        "UNSUPPORTED_PARAMETER");
    }
    RETURN_IF_ERROR(part.Read("text", &piece));
    if (!piece.has_value()) return ParamError(place, absl::StrCat(place, ".text is missing"));
    part.Ignore(kCacheControl);
    RETURN_IF_ERROR(part.RefuseUnknown());
    if (i > 0) text.push_back('\n');
    text.append(*piece);
  }
  return text;
}

absl::StatusOr<std::string> ReadContent(Fields& fields, bool may_miss) {
  const Json* const content = fields.Find("content");
  const std::string path = fields.PathOf("content");
  if (content == nullptr) {
    if (may_miss) return "";
    return ParamError(path, absl::StrCat(path, " is missing"), "MISSING_PARAMETER");
  }
  if (content->is_string()) return content->get<std::string>();
  if (content->is_array()) return TextOfParts(*content, path);
  return ParamError(path, absl::StrCat(path, " must be a string or a list of parts"),
                    "INVALID_TYPE");
}

absl::Status ReadText(Fields& fields, const char* name, std::string* out) {
  std::optional<std::string> text;
  RETURN_IF_ERROR(fields.Read(name, &text));
  if (text.has_value()) *out = *std::move(text);
  return absl::OkStatus();
}

absl::Status ReadMessage(const Json& json, const std::string& path, v1::Message* message) {
  ASSIGN_OR_RETURN(Fields fields, Fields::Of(json, path));
  RETURN_IF_ERROR(ReadText(fields, "role", message->mutable_role()));
  if (message->role().empty()) {
    return ParamError(fields.PathOf("role"), absl::StrCat(path, ".role is missing"),
                      "MISSING_PARAMETER");
  }
  if (message->role() == "developer") message->set_role("system");
  const bool is_assistant = message->role() == "assistant";
  if (is_assistant) {
    if (const Json* const calls = fields.Find("tool_calls")) {
      if (!calls->is_array()) {
        return ParamError(fields.PathOf("tool_calls"),
                          absl::StrCat(path, ".tool_calls must be a list"), "INVALID_TYPE");
      }
      if (!calls->empty()) message->set_tool_calls(WithoutCacheControl(*calls).dump());
    }
    RETURN_IF_ERROR(ReadText(fields, "reasoning_content", message->mutable_reasoning_content()));
  }
  ASSIGN_OR_RETURN(*message->mutable_content(), ReadContent(fields, is_assistant));
  RETURN_IF_ERROR(ReadText(fields, "name", message->mutable_name()));
  if (message->role() == "tool") {
    RETURN_IF_ERROR(ReadText(fields, "tool_call_id", message->mutable_tool_call_id()));
  }
  for (const char* const name : {"refusal", "audio", "annotations", "function_call"}) {
    RETURN_IF_ERROR(fields.NotOffered(name, "the model has no such thing"));
  }
  fields.Ignore(kCacheControl);
  return fields.RefuseUnknown();
}

absl::Status ReadTemplateArguments(Fields& fields, v1::Messages* conversation) {
  const Json* const given = fields.Find("chat_template_kwargs");
  if (given == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(Fields inner, Fields::Of(*given, "chat_template_kwargs"));
  std::optional<bool> thinking;
  RETURN_IF_ERROR(inner.Read("enable_thinking", &thinking));
  if (thinking.has_value()) conversation->set_enable_thinking(*thinking);
  Json others = *given;
  others.erase("enable_thinking");
  if (!others.empty()) conversation->set_template_arguments(others.dump());
  return absl::OkStatus();
}

absl::Status ReadLogprobs(Fields& fields, ChatRequest* request) {
  std::optional<bool> wanted;
  std::optional<int64_t> top;
  RETURN_IF_ERROR(fields.Read("logprobs", &wanted));
  RETURN_IF_ERROR(fields.Read("top_logprobs", &top, 0, kTopLogprobsMax));
  request->logprobs = wanted.value_or(false);
  if (top.value_or(0) > 0 && !request->logprobs) {
    return ParamError("top_logprobs", "top_logprobs needs \"logprobs\": true");
  }
  if (request->logprobs) {
    request->call.mutable_sampling()->set_logprobs(static_cast<int32_t>(top.value_or(0)));
  }
  return absl::OkStatus();
}

absl::Status RefuseWhatIsNotOffered(Fields& fields) {
  RETURN_IF_ERROR(fields.NotOffered("modalities", "answers are text", Json::array({"text"})));
  for (const char* const name :
       {"audio", "prediction", "web_search_options", "reasoning_effort", "verbosity"}) {
    RETURN_IF_ERROR(fields.NotOffered(name, "this server has no such thing"));
  }
  return absl::OkStatus();
}

}  // namespace

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
    RETURN_IF_ERROR(ReadMessage((*messages)[i], absl::StrCat("messages[", i, "]"),
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
  return ReadTemplateArguments(fields, conversation);
}

absl::StatusOr<ChatRequest> ReadChatRequest(const Json& body) {
  ChatRequest request;
  ASSIGN_OR_RETURN(Fields fields, Fields::Of(body));
  RETURN_IF_ERROR(ReadCommonFields(fields, &request.options, &request.call));
  RETURN_IF_ERROR(ReadMaxTokens(fields, {"max_completion_tokens", "max_tokens"},
                                request.call.mutable_sampling()));
  RETURN_IF_ERROR(ReadConversation(fields, request.call.mutable_messages()));
  // Also where the rendered conversation is sent, as token ids, in the place of its messages.
  if (request.call.reuse() == v1::KV_REUSE_UNSPECIFIED) {
    request.call.set_reuse(v1::KV_REUSE_GENERATED);
  }
  RETURN_IF_ERROR(ReadLogprobs(fields, &request));
  RETURN_IF_ERROR(ReadTools(fields, request.call.mutable_messages(), &request.tools));
  RETURN_IF_ERROR(ReadConstraint(fields));
  RETURN_IF_ERROR(RefuseWhatIsNotOffered(fields));
  RETURN_IF_ERROR(fields.RefuseUnknown());
  return request;
}

}  // namespace retroinfer::gateway
