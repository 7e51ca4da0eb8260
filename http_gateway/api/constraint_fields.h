// The fields of a request that say what its answer must look like.
#pragma once

#include "absl/status/status.h"
#include "http_gateway/json/fields.h"

namespace retroinfer::gateway {

// Reads `response_format` and the fields by which other servers name the same.
//
// Returns: INVALID_ARGUMENT with the parameter, for each that asks for anything.
absl::Status ReadConstraint(Fields& fields);

}  // namespace retroinfer::gateway
