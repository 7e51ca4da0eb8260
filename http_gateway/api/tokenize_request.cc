#include "http_gateway/api/tokenize_request.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status/status_macros.h"
#include "http_gateway/api/conversation_fields.h"
#include "http_gateway/api/stable_prompt.h"

namespace retroinfer::gateway {

namespace v1 = generation::v1;

absl::StatusOr<TokenizeCall> ReadTokenizeRequest(const Json& body, IgnoredNames* ignored) {
  TokenizeCall call;
  v1::TokenizeRequest& request = call.request;
  ASSIGN_OR_RETURN(Fields fields, Fields::Of(body, "", ignored));
  fields.Ignore("model");
  fields.Ignore(kCacheControl);
  std::optional<std::string> prompt;
  RETURN_IF_ERROR(fields.Read("prompt", &prompt));
  std::optional<bool> add_special;
  RETURN_IF_ERROR(fields.Read("add_special_tokens", &add_special));
  if (add_special.has_value()) request.set_add_special_tokens(*add_special);
  if (fields.Find("messages") != nullptr) {
    if (prompt.has_value()) return ParamError("prompt", "prompt and messages exclude each other");
    RETURN_IF_ERROR(ReadConversation(fields, request.mutable_messages()));
  } else {
    if (!prompt.has_value()) {
      return ParamError("prompt", "prompt or messages is missing", "MISSING_PARAMETER");
    }
    request.set_text(*prompt);
  }
  std::optional<bool> return_tokens;
  RETURN_IF_ERROR(fields.Read("return_tokens", &return_tokens));
  call.return_tokens = return_tokens.value_or(true);
  RETURN_IF_ERROR(fields.CheckUnknown());
  return call;
}

absl::StatusOr<v1::DetokenizeRequest> ReadDetokenizeRequest(const Json& body,
                                                            IgnoredNames* ignored) {
  v1::DetokenizeRequest request;
  ASSIGN_OR_RETURN(Fields fields, Fields::Of(body, "", ignored));
  fields.Ignore("model");
  const Json* const tokens = fields.Find("tokens");
  if (tokens == nullptr) return ParamError("tokens", "tokens is missing", "MISSING_PARAMETER");
  std::vector<int32_t> ids;
  RETURN_IF_ERROR(Fields::ReadIds(*tokens, "tokens", &ids));
  request.mutable_token_ids()->Assign(ids.begin(), ids.end());
  std::optional<bool> skip;
  RETURN_IF_ERROR(fields.Read("skip_special_tokens", &skip));
  if (skip.has_value()) request.set_skip_special_tokens(*skip);
  RETURN_IF_ERROR(fields.CheckUnknown());
  return request;
}

std::string TokenizeJson(const v1::TokenizeResponse& response, bool return_tokens) {
  std::string json = absl::StrCat(R"({"count":)", response.token_ids_size(), R"(,"max_model_len":)",
                                  response.max_model_len());
  if (return_tokens) {
    absl::StrAppend(&json, R"(,"tokens":[)", absl::StrJoin(response.token_ids(), ","), "]");
  }
  json.push_back('}');
  return json;
}

}  // namespace retroinfer::gateway
