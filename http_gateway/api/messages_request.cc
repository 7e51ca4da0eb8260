#include "http_gateway/api/messages_request.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "http_gateway/api/chat_translation.h"
#include "http_gateway/api/conversation_fields.h"
#include "http_gateway/api/message_blocks.h"
#include "http_gateway/api/reasoning_fields.h"
#include "http_gateway/api/stable_prompt.h"

namespace retroinfer::gateway {
namespace {

// Adds the functions among `tools` to `functions`. A function has no type, or "custom".
absl::Status ReadTools(Fields& fields, Json* functions) {
  const Json* const tools = fields.Find("tools");
  if (tools == nullptr) return absl::OkStatus();
  if (!tools->is_array()) return ParamError("tools", "tools must be a list", "INVALID_TYPE");
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string path = absl::StrCat("tools[", i, "]");
    ASSIGN_OR_RETURN(Fields tool, fields.Inner((*tools)[i], path));
    std::optional<std::string> type;
    RETURN_IF_ERROR(tool.Read("type", &type));
    if (type.value_or("custom") != "custom") {
      RETURN_IF_ERROR(fields.IgnoreOr(
          absl::StrCat(path, "(", *type, ")"),
          ParamError(path, absl::StrCat(path, " is no function: other tools are not offered"),
                     "UNSUPPORTED_PARAMETER")));
      continue;
    }
    const auto member = [&tool](const char* name) {
      const Json* const value = tool.Find(name);
      return value == nullptr ? Json() : *value;
    };
    functions->push_back(ChatFunction(member("name"), member("description"), member("input_schema"),
                                      member("strict")));
    // How the call is streamed, and examples, change no answer; the others are marks.
    for (const char* const name : {kCacheControl, "eager_input_streaming", "defer_loading",
                                   "allowed_callers", "input_examples"}) {
      tool.Ignore(name);
    }
    RETURN_IF_ERROR(tool.CheckUnknown());
  }
  return absl::OkStatus();
}

absl::Status ReadToolChoice(Fields& fields, Json* chat) {
  const Json* const choice = fields.Find("tool_choice");
  if (choice == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(Fields inner, fields.Inner(*choice, "tool_choice"));
  std::optional<std::string> type, name;
  std::optional<bool> is_single;
  RETURN_IF_ERROR(inner.Read("type", &type));
  RETURN_IF_ERROR(inner.Read("name", &name));
  RETURN_IF_ERROR(inner.Read("disable_parallel_tool_use", &is_single));
  if (type == "auto" || type == "none") {
    (*chat)["tool_choice"] = *type;
  } else if (type == "any") {
    (*chat)["tool_choice"] = "required";
  } else if (type == "tool" && name.has_value()) {
    (*chat)["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
  } else {
    return ParamError("tool_choice",
                      "tool_choice must be of the type auto, any, none, or tool with a name");
  }
  if (is_single.value_or(false)) (*chat)["parallel_tool_calls"] = false;
  return inner.CheckUnknown();
}

// `output_config`: effort and form of the answer. Before there was that, `output_format` was one.
absl::Status ReadOutput(Fields& fields, ChatRequest* request) {
  const Json* format = fields.Find("output_format");
  std::string path = "output_format";
  if (const Json* const config = fields.Find("output_config")) {
    ASSIGN_OR_RETURN(Fields inner, fields.Inner(*config, "output_config"));
    std::optional<std::string> effort;
    RETURN_IF_ERROR(inner.Read("effort", &effort));
    if (effort.has_value()) {
      RETURN_IF_ERROR(
          SetReasoningEffort(*effort, inner.PathOf("effort"), request->call.mutable_messages()));
    }
    if (const Json* const newer = inner.Find("format")) {
      format = newer;
      path = inner.PathOf("format");
    }
    RETURN_IF_ERROR(inner.CheckUnknown());
  }
  return ReadAnswerFormat(format, path, fields, request);
}

absl::Status ReadStop(Fields& fields, generation::v1::SamplingOptions* sampling) {
  const Json* const stop = fields.Find("stop_sequences");
  if (stop == nullptr) return absl::OkStatus();
  const auto wrong =
      ParamError("stop_sequences", "stop_sequences must be a list of strings", "INVALID_TYPE");
  if (!stop->is_array()) return wrong;
  for (const Json& item : *stop) {
    if (!item.is_string()) return wrong;
    sampling->add_stop(item.get<std::string>());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChatRequest> ReadMessagesRequest(const Json& body, IgnoredNames* ignored) {
  ChatRequest request;
  request.form = ChatForm::kMessages;
  ASSIGN_OR_RETURN(Fields fields, Fields::Of(body, "", ignored));
  generation::v1::GenerateRequest& call = request.call;
  generation::v1::Messages* const conversation = call.mutable_messages();
  RETURN_IF_ERROR(ReadCommonFields(fields, &request.options, &call));
  if (call.sampling().n() > 1) return ParamError("n", "n must be 1 here");
  RETURN_IF_ERROR(ReadMaxTokens(fields, {"max_tokens"}, call.mutable_sampling()));
  RETURN_IF_ERROR(ReadStop(fields, call.mutable_sampling()));
  RETURN_IF_ERROR(ReadMessageBlocks(fields, conversation));
  RETURN_IF_ERROR(ReadTemplateArguments(fields, conversation));
  RETURN_IF_ERROR(ReadReasoning(fields, conversation));
  RETURN_IF_ERROR(ReadOutput(fields, &request));
  if (fields.Find("thinking") == nullptr && !conversation->has_enable_thinking()) {
    conversation->set_enable_thinking(false);
  }
  SetChatDefaults(&call);
  Json chat = Json::object(), functions = Json::array();
  RETURN_IF_ERROR(ReadTools(fields, &functions));
  RETURN_IF_ERROR(ReadToolChoice(fields, &chat));
  if (!functions.empty()) chat["tools"] = std::move(functions);
  static const NamePairs names = {{"].function.parameters", "].input_schema"},
                                  {"].function.", "]."}};
  RETURN_IF_ERROR(ReadToolsOfChat(chat, names, ignored, &request));
  RETURN_IF_ERROR(fields.CheckUnknown());
  return request;
}

}  // namespace retroinfer::gateway
