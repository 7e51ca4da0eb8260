#include "http_gateway/api/score_request.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "http_gateway/api/conversation_fields.h"
#include "http_gateway/api/stable_prompt.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

constexpr int64_t kLogprobsMax = 20;
constexpr char kUnsupported[] = "UNSUPPORTED_PARAMETER";

// `message` has text or token ids.
template <typename Message>
absl::Status ReadInput(const Json& value, const std::string& path, Message* message) {
  if (value.is_string()) {
    message->set_text(value.get<std::string>());
    return absl::OkStatus();
  }
  if (!value.is_array()) {
    return ParamError(path, absl::StrCat(path, " must be a string or a list of token ids"),
                      "INVALID_TYPE");
  }
  std::vector<int32_t> ids;
  RETURN_IF_ERROR(Fields::ReadIds(value, path, &ids));
  message->mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
  return absl::OkStatus();
}

absl::Status ReadContinuations(Fields& fields, v1::ScoreRequest* request) {
  const Json* const list = fields.Find("continuations");
  if (list == nullptr) return absl::OkStatus();
  if (!list->is_array()) {
    return ParamError("continuations",
                      "continuations must be a list of strings or of lists of token ids",
                      "INVALID_TYPE");
  }
  if (list->size() > ScoreCall::kContinuationsMax) {
    return ParamError("continuations",
                      absl::StrCat("continuations has ", list->size(), " entries, at most ",
                                   ScoreCall::kContinuationsMax, " are allowed"));
  }
  for (const Json& item : *list) {
    const std::string path = absl::StrCat("continuations[", request->continuations_size(), "]");
    RETURN_IF_ERROR(ReadInput(item, path, request->add_continuations()));
  }
  return absl::OkStatus();
}

absl::Status ReadContext(Fields& fields, v1::ScoreRequest* request) {
  const Json* const prompt = fields.Find("prompt");
  if (fields.Find("messages") != nullptr) {
    if (prompt != nullptr) return ParamError("prompt", "prompt and messages exclude each other");
    return ReadConversation(fields, request->mutable_messages());
  }
  if (prompt == nullptr) {
    return ParamError("prompt", "prompt or messages is missing", "MISSING_PARAMETER");
  }
  return ReadInput(*prompt, "prompt", request);
}

absl::Status ReadAdditions(Fields& fields, ScoreCall* call) {
  v1::GenerateRequest shared;
  RETURN_IF_ERROR(ReadExtensions(fields, &call->options, &shared));
  if (call->options.return_progress) {
    return ParamError("return_progress", "return_progress is not offered: there is one answer",
                      kUnsupported);
  }
  if (!shared.tenant().empty()) {
    return ParamError("tenant", "tenant is not offered here: the key names it; see cache_salt",
                      kUnsupported);
  }
  if (shared.reuse() == v1::KV_REUSE_GENERATED) {
    return ParamError("reuse", "reuse must be exact here: generated KV is not measured",
                      kUnsupported);
  }
  v1::ScoreRequest& request = call->request;
  if (shared.has_attention()) *request.mutable_attention() = shared.attention();
  if (shared.has_timeout()) *request.mutable_timeout() = shared.timeout();
  request.set_cache_salt(shared.cache_salt());
  request.set_priority(shared.priority());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ScoreCall> ReadScoreRequest(const Json& body, IgnoredNames* ignored) {
  ScoreCall call;
  v1::ScoreRequest& request = call.request;
  ASSIGN_OR_RETURN(Fields fields, Fields::Of(body, "", ignored));
  std::optional<std::string> model;
  RETURN_IF_ERROR(fields.Read("model", &model));
  call.options.model = model.value_or("");
  RETURN_IF_ERROR(fields.NotOffered("stream", "there is one answer"));
  RETURN_IF_ERROR(ReadAdditions(fields, &call));
  RETURN_IF_ERROR(ReadContext(fields, &request));
  RETURN_IF_ERROR(ReadContinuations(fields, &request));
  std::optional<bool> add_special;
  RETURN_IF_ERROR(fields.Read("add_special_tokens", &add_special));
  if (add_special.has_value()) request.set_add_special_tokens(*add_special);
  std::optional<int64_t> alternatives;
  RETURN_IF_ERROR(fields.Read("logprobs", &alternatives, 0, kLogprobsMax));
  if (alternatives.has_value()) request.set_logprobs(static_cast<int32_t>(*alternatives));
  alternatives.reset();
  RETURN_IF_ERROR(fields.Read("prompt_logprobs", &alternatives, 0, kLogprobsMax));
  if (alternatives.has_value()) request.set_prompt_logprobs(static_cast<int32_t>(*alternatives));
  fields.Ignore("user");
  fields.Ignore(kCacheControl);
  RETURN_IF_ERROR(fields.CheckUnknown());
  if (request.continuations_size() == 0 && !request.has_prompt_logprobs()) {
    return ParamError("continuations",
                      "there is nothing to measure: give continuations, or prompt_logprobs",
                      "MISSING_PARAMETER");
  }
  return call;
}

}  // namespace retroinfer::gateway
