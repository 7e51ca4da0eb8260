// The body of POST /v1/chat/completions.
#pragma once

#include "absl/status/statusor.h"
#include "http_gateway/api/sampling_fields.h"
#include "http_gateway/api/tool_fields.h"

namespace retroinfer::gateway {

struct ChatRequest {
  RequestOptions options;
  generation::v1::GenerateRequest call;  // its input is `messages`
  bool logprobs = false;
  ToolRequest tools;
};

// The conversation is read as ReadConversation() reads it. `ignored`: gets the names of what
// changes no answer, or is not known; null: both are refused.
//
// Returns: INVALID_ARGUMENT with the parameter; what would make another answer and is not offered
//          (images, functions) is refused by name.
absl::StatusOr<ChatRequest> ReadChatRequest(const Json& body, IgnoredNames* ignored = nullptr);

}  // namespace retroinfer::gateway
