// The bodies of POST /v1/messages and /v1/messages/count_tokens.
#pragma once

#include "absl/status/statusor.h"
#include "http_gateway/api/chat_request.h"

namespace retroinfer::gateway {

// Reads it as a chat. Without `thinking` the model does not think, as Anthropic's API has it.
// Functions are the tools that are offered; those that Anthropic's servers run are ignored, and
// named.
//
// Returns: INVALID_ARGUMENT with the parameter; content that is no text (images, documents) is
//          refused by name.
absl::StatusOr<ChatRequest> ReadMessagesRequest(const Json& body, IgnoredNames* ignored = nullptr);

}  // namespace retroinfer::gateway
