// Translates between absl::Status and grpc::Status. The only place that does.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace retroinfer::common {

// The codes of both are the same numbers; messages are kept.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace retroinfer::common
