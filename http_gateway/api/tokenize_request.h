// The bodies of POST /tokenize and /detokenize, as other servers have them.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "http_gateway/json/fields.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::gateway {

// {"prompt": text, "add_special_tokens"} or {"messages": [...], ...} as for chat.
//
// Returns: INVALID_ARGUMENT with the parameter.
absl::StatusOr<generation::v1::TokenizeRequest> ReadTokenizeRequest(const Json& body);
// {"tokens": [ids], "skip_special_tokens"}
absl::StatusOr<generation::v1::DetokenizeRequest> ReadDetokenizeRequest(const Json& body);

// {"count", "max_model_len", "tokens"}
std::string TokenizeJson(const generation::v1::TokenizeResponse& response);

}  // namespace retroinfer::gateway
