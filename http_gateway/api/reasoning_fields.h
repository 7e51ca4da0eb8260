// How much a model shall think before it answers, in the words of several APIs.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "http_gateway/json/fields.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::gateway {

// Reads `reasoning_effort`, `reasoning` ({"effort", "enabled"}) and `thinking` ({"type": "enabled",
// "disabled" or "adaptive"}). What chat_template_kwargs has set before stays.
//
// Returns: INVALID_ARGUMENT with the parameter.
absl::Status ReadReasoning(Fields& fields, generation::v1::Messages* conversation);

// Hands an effort to the template, as its variable `reasoning_effort`: those that know it do with
// it what they can. "none" turns thinking off, too; no other one does, since templates that know
// thinking as a switch have nothing between on and off.
//
// Returns: INVALID_ARGUMENT, about the parameter `path`, unless it is none, minimal, low, medium,
//          high, xhigh or max.
absl::Status SetReasoningEffort(const std::string& effort, const std::string& path,
                                generation::v1::Messages* conversation);

}  // namespace retroinfer::gateway
