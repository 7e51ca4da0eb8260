// A machine-readable reason on an absl::Status, which ToGrpcStatus() turns into an ErrorInfo.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace retroinfer::common {

struct ErrorReason {
  std::string reason;  // UPPER_SNAKE_CASE; empty if the status has none
  std::map<std::string, std::string> metadata;
};

// Returns `status` with a reason and the numbers of its message; an earlier reason is replaced.
//
// REQUIRES: !status.ok().
absl::Status WithReason(absl::Status status, std::string_view reason,
                        const std::map<std::string, std::string>& metadata = {});

// Returns what WithReason() attached.
ErrorReason ReasonOf(const absl::Status& status);

}  // namespace retroinfer::common
