#include "http_gateway/api/chat_request.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "http_gateway/api/stable_prompt.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

constexpr int64_t kTopLogprobsMax = 20;
constexpr size_t kFunctionNameMax = 64;

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

bool IsFunctionName(const std::string& name) {
  if (name.empty() || name.size() > kFunctionNameMax) return false;
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && std::string_view("_.-").find(c) == std::string_view::npos) {
      return false;
    }
  }
  return true;
}

// Returns the names of the functions in `tools`.
absl::StatusOr<std::set<std::string>> ReadToolNames(const Json& tools) {
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
  }
  return names;
}

absl::Status ReadToolChoice(Fields& fields, ChatRequest* request) {
  const bool has_tools = !request->tool_names.empty();
  request->tool_choice = has_tools ? ToolChoice::kAuto : ToolChoice::kNone;
  const Json* const choice = fields.Find("tool_choice");
  if (choice == nullptr) return absl::OkStatus();
  const auto wrong = ParamError(
      "tool_choice", "tool_choice must be \"none\", \"auto\", \"required\" or name a function");
  if (*choice == "none") {
    request->tool_choice = ToolChoice::kNone;
  } else if (*choice == "required") {
    request->tool_choice = ToolChoice::kRequired;
  } else if (choice->is_object()) {
    if (choice->value("type", Json()) != "function" || !choice->contains("function")) return wrong;
    const Json& function = (*choice)["function"];
    if (!function.is_object() || !function.value("name", Json()).is_string()) return wrong;
    request->tool_choice = ToolChoice::kFunction;
    request->function = function["name"].get<std::string>();
    if (!request->tool_names.contains(request->function)) {
      return ParamError("tool_choice", "tool_choice names a function that is not among the tools");
    }
  } else if (*choice != "auto") {
    return wrong;
  }
  if (request->tool_choice == ToolChoice::kRequired && !has_tools) {
    return ParamError("tool_choice", "tool_choice \"required\" needs tools");
  }
  return absl::OkStatus();
}

absl::Status ReadTools(Fields& fields, ChatRequest* request) {
  v1::Messages* const conversation = request->call.mutable_messages();
  if (const Json* const tools = fields.Find("tools")) {
    ASSIGN_OR_RETURN(request->tool_names, ReadToolNames(*tools));
  }
  RETURN_IF_ERROR(ReadToolChoice(fields, request));
  if (request->tool_choice == ToolChoice::kNone) {
    request->tool_names.clear();
    conversation->clear_tools();
  }
  const bool forced = request->tool_choice == ToolChoice::kRequired ||
                      request->tool_choice == ToolChoice::kFunction;
  if (forced && conversation->continue_final_message()) {
    return ParamError("tool_choice", "tool_choice and continue_final_message exclude each other");
  }
  if (forced && !conversation->has_enable_thinking()) conversation->set_enable_thinking(false);
  std::optional<bool> parallel;
  RETURN_IF_ERROR(fields.Read("parallel_tool_calls", &parallel));
  if (!parallel.value_or(true) && request->tool_choice != ToolChoice::kNone) {
    return ParamError("parallel_tool_calls",
                      "parallel_tool_calls: false is not offered: the model decides how many calls "
                      "it makes",
                      "UNSUPPORTED_PARAMETER");
  }
  RETURN_IF_ERROR(fields.NotOffered("functions", "use tools"));
  return fields.NotOffered("function_call", "use tool_choice", "none");
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
  RETURN_IF_ERROR(fields.NotOffered("response_format",
                                    "answers are not forced into JSON; \"text\" is what there is",
                                    Json::object({{"type", "text"}})));
  RETURN_IF_ERROR(fields.NotOffered("modalities", "answers are text", Json::array({"text"})));
  for (const char* const name :
       {"audio", "prediction", "web_search_options", "reasoning_effort", "verbosity", "guided_json",
        "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"}) {
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
  RETURN_IF_ERROR(ReadTools(fields, &request));
  RETURN_IF_ERROR(RefuseWhatIsNotOffered(fields));
  RETURN_IF_ERROR(fields.RefuseUnknown());
  return request;
}

}  // namespace retroinfer::gateway
