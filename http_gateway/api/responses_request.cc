#include "http_gateway/api/responses_request.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "http_gateway/api/chat_translation.h"
#include "http_gateway/api/conversation_fields.h"
#include "http_gateway/api/reasoning_fields.h"
#include "http_gateway/api/response_input.h"
#include "http_gateway/api/stable_prompt.h"

namespace retroinfer::gateway {
namespace {

// What is repeated in an answer, three times if it is streamed.
constexpr size_t kEchoBytesMax = 256 << 10;

Json Member(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? Json() : *found;
}

// What `name` says, or its default.
Json Given(const Json& body, const char* name, Json otherwise) {
  Json value = Member(body, name);
  return value.is_null() ? otherwise : value;
}

// Members of the answer. Instructions and tools that are very long are left out.
std::string EchoOf(const Json& body) {
  Json echo = {{"instructions", Member(body, "instructions")},
               {"max_output_tokens", Member(body, "max_output_tokens")},
               {"metadata", Given(body, "metadata", Json::object())},
               {"parallel_tool_calls", Given(body, "parallel_tool_calls", true)},
               {"previous_response_id", nullptr},
               {"reasoning", Given(body, "reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
               {"store", false},
               {"temperature", Member(body, "temperature")},
               {"text", Given(body, "text", {{"format", {{"type", "text"}}}})},
               {"tool_choice", Given(body, "tool_choice", "auto")},
               {"tools", Given(body, "tools", Json::array())},
               {"top_p", Member(body, "top_p")},
               {"truncation", "disabled"},
               {"user", Member(body, "user")}};
  std::string members = echo.dump();
  if (members.size() > kEchoBytesMax) {
    echo["instructions"] = nullptr;
    echo["tools"] = Json::array();
    members = echo.dump();
  }
  if (members.size() > kEchoBytesMax) {
    members = R"({"parallel_tool_calls":true,"tool_choice":"auto","tools":[]})";
  }
  return members.substr(1, members.size() - 2);
}

// Adds the functions among `tools` to `functions`.
absl::Status ReadTools(Fields& fields, Json* functions) {
  const Json* const tools = fields.Find("tools");
  if (tools == nullptr) return absl::OkStatus();
  if (!tools->is_array()) return ParamError("tools", "tools must be a list", "INVALID_TYPE");
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string path = absl::StrCat("tools[", i, "]");
    ASSIGN_OR_RETURN(Fields tool, fields.Inner((*tools)[i], path));
    std::optional<std::string> type;
    RETURN_IF_ERROR(tool.Read("type", &type));
    if (!type.has_value()) {
      return ParamError(path + ".type", absl::StrCat(path, ".type is missing"),
                        "MISSING_PARAMETER");
    }
    if (*type != "function") {
      RETURN_IF_ERROR(fields.IgnoreOr(
          absl::StrCat("tools[", i, "](", *type, ")"),
          ParamError(path, absl::StrCat(path, " is no function: other tools are not offered"),
                     "UNSUPPORTED_PARAMETER")));
      continue;
    }
    const auto member = [&tool](const char* name) {
      const Json* const value = tool.Find(name);
      return value == nullptr ? Json() : *value;
    };
    functions->push_back(ChatFunction(member("name"), member("description"), member("parameters"),
                                      member("strict")));
    tool.Ignore(kCacheControl);
    RETURN_IF_ERROR(tool.CheckUnknown());
  }
  return absl::OkStatus();
}

// `text`: how long the answer is, and its form.
absl::Status ReadText(Fields& fields, ChatRequest* request) {
  const Json* const text = fields.Find("text");
  if (text == nullptr) return ReadAnswerFormat(nullptr, "text.format", fields, request);
  ASSIGN_OR_RETURN(Fields inner, fields.Inner(*text, "text"));
  RETURN_IF_ERROR(inner.Hint("verbosity", "the model writes as much as it does"));
  RETURN_IF_ERROR(ReadAnswerFormat(inner.Find("format"), "text.format", fields, request));
  return inner.CheckUnknown();
}

// Returns what is chosen as chats write it, and an empty value for what is no function, which is
// ignored with its tool.
Json ChatToolChoice(const Json& choice) {
  if (!choice.is_object() || Member(choice, "type") != "function") {
    return choice.is_object() ? Json() : choice;
  }
  return {{"type", "function"}, {"function", {{"name", Member(choice, "name")}}}};
}

absl::Status ReadChoices(Fields& fields, IgnoredNames* ignored, ChatRequest* request) {
  Json chat = Json::object();
  Json functions = Json::array();
  RETURN_IF_ERROR(ReadTools(fields, &functions));
  if (const Json* const choice = fields.Find("tool_choice")) {
    chat["tool_choice"] = ChatToolChoice(*choice);
    if (chat["tool_choice"].is_null()) {
      RETURN_IF_ERROR(fields.IgnoreOr("tool_choice",
                                      ParamError("tool_choice",
                                                 "tool_choice names no function: other tools are "
                                                 "not offered")));
    }
  }
  if (!functions.empty()) chat["tools"] = std::move(functions);
  if (const Json* const parallel = fields.Find("parallel_tool_calls")) {
    chat["parallel_tool_calls"] = *parallel;
  }
  static const NamePairs names = {{"].function.", "]."}};
  return ReadToolsOfChat(chat, names, ignored, request);
}

absl::Status CheckOffered(Fields& fields) {
  constexpr char kStateless[] =
      "responses are not stored here: send the whole conversation as input, and \"store\": false";
  for (const char* const name : {"previous_response_id", "conversation", "background"}) {
    RETURN_IF_ERROR(fields.NotOffered(name, kStateless));
  }
  RETURN_IF_ERROR(fields.NotOffered("prompt", "prompts are not stored here"));
  RETURN_IF_ERROR(fields.Hint("truncation", "no input is cut", "disabled"));
  RETURN_IF_ERROR(fields.Hint("max_tool_calls", "the model makes as many as it does"));
  RETURN_IF_ERROR(fields.Hint("top_logprobs", "ask for them of /v1/chat/completions", 0));
  // What it names is not there, or comes anyway.
  fields.Ignore("include");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChatRequest> ReadResponsesRequest(const Json& body, IgnoredNames* ignored) {
  ChatRequest request;
  request.form = ChatForm::kResponses;
  ASSIGN_OR_RETURN(Fields fields, Fields::Of(body, "", ignored));
  generation::v1::GenerateRequest& call = request.call;
  RETURN_IF_ERROR(ReadCommonFields(fields, &request.options, &call));
  if (call.sampling().n() > 1) return ParamError("n", "n must be 1 here");
  RETURN_IF_ERROR(ReadMaxTokens(fields, {"max_output_tokens"}, call.mutable_sampling()));
  RETURN_IF_ERROR(ReadResponseInput(fields, call.mutable_messages()));
  RETURN_IF_ERROR(ReadTemplateArguments(fields, call.mutable_messages()));
  RETURN_IF_ERROR(ReadReasoning(fields, call.mutable_messages()));
  SetChatDefaults(&call);
  RETURN_IF_ERROR(ReadChoices(fields, ignored, &request));
  RETURN_IF_ERROR(ReadText(fields, &request));
  RETURN_IF_ERROR(CheckOffered(fields));
  RETURN_IF_ERROR(fields.CheckUnknown());
  request.echo = EchoOf(body);
  return request;
}

}  // namespace retroinfer::gateway
