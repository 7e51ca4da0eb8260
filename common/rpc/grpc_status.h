// Translates between absl::Status and grpc::Status. The only place that does.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace retroinfer::common {

inline constexpr char kErrorDomain[] = "retroinfer";

// The codes of both are the same numbers; messages are kept. An error carries an ErrorInfo
// (retroinfer/rpc/v1/error_details.proto) with the reason and metadata of WithReason(); an error
// without one gets the name of its code as reason. The delay of WithRetry() becomes a RetryInfo.
grpc::Status ToGrpcStatus(const absl::Status& status);

// The reverse; the reason of the first ErrorInfo of our domain and the first RetryInfo are kept, if
// there are any.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace retroinfer::common
