// The fields of a chat that are about functions.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "http_gateway/json/fields.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::gateway {

enum class ToolChoice {
  kNone,      // no calls: the model is not told of the functions
  kAuto,      // the model decides
  kRequired,  // the answer is one call or several
  kFunction,  // the answer is a call of ToolRequest::function
};

// What a client tells of a function.
struct ToolFunction {
  std::string name;
  Json parameters;      // a JSON Schema; null: none was given
  bool strict = false;  // the schema is kept by force
};

// What a request says of functions, whichever of the APIs it came by.
struct ToolRequest {
  ToolChoice choice = ToolChoice::kNone;
  std::string function;                 // with kFunction
  std::vector<ToolFunction> functions;  // that may be called; empty with kNone
  bool parallel = true;                 // an answer may have several calls

  std::set<std::string> Names() const;
};

// Reads `tools`, `tool_choice` and `parallel_tool_calls`. Tools that are no functions are left out,
// of `conversation`, too; with kNone all are.
//
// REQUIRES: `conversation` was read.
// Returns:  INVALID_ARGUMENT with the parameter; `functions` and `function_call` are refused.
absl::Status ReadTools(Fields& fields, generation::v1::Messages* conversation,
                       ToolRequest* request);

}  // namespace retroinfer::gateway
