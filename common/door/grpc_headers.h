// Headers of the gRPC protocol over HTTP/2.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace retroinfer::common {

// Returns the duration that a grpc-timeout header means ("100m": 100 milliseconds), infinite for
// what is none.
absl::Duration ParseGrpcTimeout(std::string_view text);

// Appends the frame with which a server ends a call that it does not take: `status` with its
// reason as gRPC would send it. The header block refers to nothing, so it may stand between those
// of another encoder.
void AppendTrailersOnly(uint32_t stream, const absl::Status& status, std::string* out);

}  // namespace retroinfer::common
