// How a chat is asked of the worker, and its answer read.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "http_gateway/api/answer_reader.h"
#include "http_gateway/api/chat_format.h"
#include "http_gateway/api/chat_request.h"

namespace retroinfer::gateway {

struct ChatPlan {
  AnswerReaderOptions reader;
  // What is asked for where the worker refuses the constraint of the call: one that keeps the
  // schemas of strict functions alone. Not set: there is nothing to ask for instead.
  std::optional<generation::v1::Constraint> relaxed;
  std::string constraint_param;  // the field that asked for the constraint; empty: none
};

// Makes `chat`'s call what the worker is to be asked: sets its constraint where functions ask for
// one (tool_choice "required" or a name, strict functions, parallel_tool_calls false), or where
// thoughts come before a constrained answer, and the special tokens that calls are made of.
//
// Returns: INVALID_ARGUMENT, parameter "tools", for functions and a model of which no form of calls
//          is known; of ToolGrammar().
absl::StatusOr<ChatPlan> PlanChat(const ChatFormat& format, ChatRequest* chat);

}  // namespace retroinfer::gateway
