// The bodies of POST /tokenize and /detokenize, as other servers have them.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "http_gateway/json/fields.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::gateway {

struct TokenizeCall {
  generation::v1::TokenizeRequest request;
  bool return_tokens = true;  // false: only how many
};

// {"prompt": text, "add_special_tokens"} or {"messages": [...], ...} as for chat; "return_tokens".
//
// Returns: INVALID_ARGUMENT with the parameter.
absl::StatusOr<TokenizeCall> ReadTokenizeRequest(const Json& body, IgnoredNames* ignored = nullptr);
// {"tokens": [ids], "skip_special_tokens"}
absl::StatusOr<generation::v1::DetokenizeRequest> ReadDetokenizeRequest(
    const Json& body, IgnoredNames* ignored = nullptr);

// {"count", "max_model_len", "tokens"}; without the last one if it is not wanted.
std::string TokenizeJson(const generation::v1::TokenizeResponse& response, bool return_tokens);

}  // namespace retroinfer::gateway
