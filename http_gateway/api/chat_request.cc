#include "http_gateway/api/chat_request.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "http_gateway/api/constraint_fields.h"
#include "http_gateway/api/conversation_fields.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

constexpr int64_t kTopLogprobsMax = 20;
constexpr char kNoSuchThing[] = "this server has no such thing";

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

// The text that the answer is expected to be like.
absl::Status ReadPrediction(Fields& fields, v1::GenerateRequest* call) {
  const Json* const value = fields.Find("prediction");
  if (value == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(Fields prediction, fields.Inner(*value, "prediction"));
  std::optional<std::string> type;
  RETURN_IF_ERROR(prediction.Read("type", &type));
  if (type != "content") {
    return ParamError("prediction.type", "prediction.type must be \"content\"");
  }
  const Json* const content = prediction.Find("content");
  if (content == nullptr) {
    return ParamError("prediction.content", "prediction.content is missing", "MISSING_PARAMETER");
  }
  if (content->is_string()) {
    call->set_prediction(content->get<std::string>());
  } else if (content->is_array()) {
    ASSIGN_OR_RETURN(*call->mutable_prediction(),
                     TextOfParts(*content, "prediction.content", prediction));
  } else {
    return ParamError("prediction.content",
                      "prediction.content must be a string or a list of parts", "INVALID_TYPE");
  }
  return prediction.CheckUnknown();
}

absl::Status RefuseWhatIsNotOffered(Fields& fields) {
  RETURN_IF_ERROR(fields.NotOffered("modalities", "answers are text", Json::array({"text"})));
  RETURN_IF_ERROR(fields.NotOffered("audio", kNoSuchThing));
  for (const char* const name : {"web_search_options", "verbosity"}) {
    RETURN_IF_ERROR(fields.Hint(name, kNoSuchThing));
  }
  return absl::OkStatus();
}

}  // namespace

// Also where the rendered conversation is sent, as token ids, in the place of its messages.
void SetChatDefaults(v1::GenerateRequest* call) {
  if (call->reuse() == v1::KV_REUSE_UNSPECIFIED) call->set_reuse(v1::KV_REUSE_GENERATED);
}

absl::StatusOr<ChatRequest> ReadChatRequest(const Json& body, IgnoredNames* ignored) {
  ChatRequest request;
  ASSIGN_OR_RETURN(Fields fields, Fields::Of(body, "", ignored));
  RETURN_IF_ERROR(ReadCommonFields(fields, &request.options, &request.call));
  RETURN_IF_ERROR(ReadMaxTokens(fields, {"max_completion_tokens", "max_tokens"},
                                request.call.mutable_sampling()));
  RETURN_IF_ERROR(ReadConversation(fields, request.call.mutable_messages()));
  SetChatDefaults(&request.call);
  RETURN_IF_ERROR(ReadLogprobs(fields, &request));
  RETURN_IF_ERROR(ReadTools(fields, request.call.mutable_messages(), &request.tools));
  ASSIGN_OR_RETURN(request.options.constraint_param, ReadConstraint(fields, &request.call));
  RETURN_IF_ERROR(ReadPrediction(fields, &request.call));
  RETURN_IF_ERROR(RefuseWhatIsNotOffered(fields));
  RETURN_IF_ERROR(fields.CheckUnknown());
  return request;
}

}  // namespace retroinfer::gateway
