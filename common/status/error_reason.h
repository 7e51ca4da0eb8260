// A machine-readable reason on an absl::Status, which ToGrpcStatus() turns into an ErrorInfo, and
// when a retry helps, which becomes a RetryInfo.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

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

// Returns `status` with the hint that the same call may succeed after `delay`.
//
// REQUIRES: !status.ok(); delay >= 0.
absl::Status WithRetry(absl::Status status, absl::Duration delay);

// Returns what WithRetry() attached; nothing where a retry cannot help.
std::optional<absl::Duration> RetryDelayOf(const absl::Status& status);

}  // namespace retroinfer::common
