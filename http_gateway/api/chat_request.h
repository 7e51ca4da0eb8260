// The body of POST /v1/chat/completions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "http_gateway/api/sampling_fields.h"
#include "http_gateway/api/tool_fields.h"

namespace retroinfer::gateway {

// Which API a chat came by, and its answer goes by.
enum class ChatForm { kChat, kResponses, kMessages };

struct ChatRequest {
  RequestOptions options;
  generation::v1::GenerateRequest call;  // its input is `messages`
  bool logprobs = false;
  ToolRequest tools;
  ChatForm form = ChatForm::kChat;
  std::string echo;  // with kResponses: members of the answer that repeat the request
};

// What holds for each chat that does not say otherwise: earlier answers are read as they were
// generated.
void SetChatDefaults(generation::v1::GenerateRequest* call);

// The conversation is read as ReadConversation() reads it. `ignored`: gets the names of what
// changes no answer, or is not known; null: both are refused.
//
// Returns: INVALID_ARGUMENT with the parameter; what would make another answer and is not offered
//          (images, functions) is refused by name.
absl::StatusOr<ChatRequest> ReadChatRequest(const Json& body, IgnoredNames* ignored = nullptr);

}  // namespace retroinfer::gateway
