// The conversation of a request for a message.
#pragma once

#include "absl/status/status.h"
#include "http_gateway/json/fields.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::gateway {

// Reads `system` and `messages`, each a text or blocks: texts, thoughts, calls of functions and
// what they returned. Results come before the text that is beside them.
//
// Returns: INVALID_ARGUMENT with the parameter; blocks of other types are refused by name.
absl::Status ReadMessageBlocks(Fields& fields, generation::v1::Messages* conversation);

}  // namespace retroinfer::gateway
