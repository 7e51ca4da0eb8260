// The conversation of a request for a response.
#pragma once

#include "absl/status/status.h"
#include "http_gateway/json/fields.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::gateway {

// Reads `instructions` and `input`: a text, or items: messages, thoughts, calls of functions and
// what they returned.
//
// Returns: INVALID_ARGUMENT with the parameter; items of other types are refused by name.
absl::Status ReadResponseInput(Fields& fields, generation::v1::Messages* conversation);

}  // namespace retroinfer::gateway
