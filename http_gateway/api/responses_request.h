// The body of POST /v1/responses.
#pragma once

#include "absl/status/statusor.h"
#include "http_gateway/api/chat_request.h"

namespace retroinfer::gateway {

// Reads it as a chat. Each request has its whole conversation: nothing is stored. Functions are the
// tools that are offered; others are ignored, and named.
//
// Returns: INVALID_ARGUMENT with the parameter; what would need stored responses
//          (previous_response_id), and input that is no text, is refused by name.
absl::StatusOr<ChatRequest> ReadResponsesRequest(const Json& body, IgnoredNames* ignored = nullptr);

}  // namespace retroinfer::gateway
