// Reads what other APIs say of functions and of the answer's form with the rules of chats.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "http_gateway/api/chat_request.h"
#include "http_gateway/json/strict_json.h"

namespace retroinfer::gateway {

// Pairs of texts in messages and in names of parameters: of chats, and what stands for it.
using NamePairs = std::vector<std::pair<std::string, std::string>>;

// Reads `chat`, an object with the members tools, tool_choice and parallel_tool_calls as chats have
// them, into `request`, whose messages are there.
//
// Returns: as ReadTools(), in the words of the other API.
absl::Status ReadToolsOfChat(const Json& chat, const NamePairs& names, IgnoredNames* ignored,
                             ChatRequest* request);

// Reads what says the form of the answer: `format`, which another API has at `path` (null: not
// there), and the fields that chats have for it beside response_format.
//
// Returns: as ReadResponseFormat() and ReadConstraint(); INVALID_ARGUMENT for two that ask.
absl::Status ReadAnswerFormat(const Json* format, const std::string& path, Fields& fields,
                              ChatRequest* request);

// A function as chats have it. `parameters`: null if there are none.
Json ChatFunction(const Json& name, const Json& description, const Json& parameters,
                  const Json& strict);

}  // namespace retroinfer::gateway
