// The grammar of answers that call functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "http_gateway/api/tool_fields.h"
#include "http_gateway/api/tool_form.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::gateway {

struct ToolGrammarOptions {
  ToolForm form = ToolForm::kNone;
  // Arguments of functions that are not strict are kept to their schemas, too, and not only to
  // being an object.
  bool all_schemas = false;
  // What an answer without calls must look like; not set: anything.
  generation::v1::Constraint otherwise;
};

// Writes a grammar for Constraint.grammar, in the form in which the model has learnt to call:
//
//   kRequired  one call or several; kFunction: one call of the function
//   kAuto      text with calls in it; or, where `otherwise` is set, calls or such an answer. In the
//              forms without a tag an answer that begins with { or [ is calls.
//
// Each call is of a function that was offered, and its arguments are an object of its schema. In
// the form of Qwen3-Coder, which has no quotes, strings are any text up to the tag that ends them:
// their length, pattern and format are not kept.
//
// REQUIRES: functions, and a form but kNone and kText.
// Returns:  INVALID_ARGUMENT, parameter "tools", where `otherwise` is a grammar itself.
absl::StatusOr<std::string> ToolGrammar(const ToolRequest& tools,
                                        const ToolGrammarOptions& options);

}  // namespace retroinfer::gateway
