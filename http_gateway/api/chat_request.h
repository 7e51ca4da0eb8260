// The body of POST /v1/chat/completions.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "http_gateway/api/sampling_fields.h"

namespace retroinfer::gateway {

enum class ToolChoice {
  kNone,      // no calls: the model is not told of the functions
  kAuto,      // the model decides
  kRequired,  // the answer begins as a call
  kFunction,  // the answer begins as a call of ChatRequest::function
};

struct ChatRequest {
  RequestOptions options;
  generation::v1::GenerateRequest call;  // its input is `messages`
  bool logprobs = false;
  ToolChoice tool_choice = ToolChoice::kNone;
  std::string function;              // with kFunction
  std::set<std::string> tool_names;  // that may be called; empty with kNone
};

// Content that is a list of parts becomes one text, a line for each part. The role "developer"
// becomes "system", which templates know. With kRequired and kFunction thinking is off, unless the
// request says otherwise.
//
// Returns: INVALID_ARGUMENT with the parameter; what is not offered (images, response_format,
//          functions) is refused by name.
absl::StatusOr<ChatRequest> ReadChatRequest(const Json& body);

// Reads `messages`, `tools`, `chat_template_kwargs` and what else makes a prompt; for /tokenize,
// too.
absl::Status ReadConversation(Fields& fields, generation::v1::Messages* conversation);

}  // namespace retroinfer::gateway
