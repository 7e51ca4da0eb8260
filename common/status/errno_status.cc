#include "common/status/errno_status.h"

#include <cerrno>
#include <string>
#include <system_error>

namespace retroinfer::common {
namespace {

absl::StatusCode CodeOf(int error_number) {
  switch (error_number) {
    case ENOENT:
      return absl::StatusCode::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
      return absl::StatusCode::kResourceExhausted;
    case EEXIST:
      return absl::StatusCode::kAlreadyExists;
    case EINVAL:
      return absl::StatusCode::kInvalidArgument;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case ETIMEDOUT:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status ErrnoStatus(int error_number, std::string_view what) {
  std::string message(what);
  message += ": " + std::generic_category().message(error_number) + " (errno " +
             std::to_string(error_number) + ")";
  return absl::Status(CodeOf(error_number), message);
}

}  // namespace retroinfer::common
