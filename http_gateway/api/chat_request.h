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

// Content that is a list of parts becomes one text, a line for each part. The role "developer"
// becomes "system", which templates know.
//
// Returns: INVALID_ARGUMENT with the parameter; what is not offered (images, response_format,
//          functions) is refused by name.
absl::StatusOr<ChatRequest> ReadChatRequest(const Json& body);

// Reads `messages`, `tools`, `chat_template_kwargs` and what else makes a prompt; for /tokenize,
// too.
absl::Status ReadConversation(Fields& fields, generation::v1::Messages* conversation);

}  // namespace retroinfer::gateway
