// Translates errno into absl::Status. The only place that does.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace retroinfer::common {

// Returns a Status for `error_number` (an errno value) whose message is "`what`: <strerror> (errno
// N)". ENOENT -> NOT_FOUND; EACCES, EPERM -> PERMISSION_DENIED; ENOMEM, ENOSPC, EDQUOT, EMFILE,
// ENFILE -> RESOURCE_EXHAUSTED; EEXIST -> ALREADY_EXISTS; EINVAL -> INVALID_ARGUMENT; ECONNREFUSED,
// ECONNRESET, EPIPE, ETIMEDOUT -> UNAVAILABLE; others -> INTERNAL.
//
// REQUIRES: error_number != 0.
absl::Status ErrnoStatus(int error_number, std::string_view what);

}  // namespace retroinfer::common
