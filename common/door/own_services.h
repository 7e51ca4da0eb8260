// gRPC's own services, health and reflection. gRPC parses their requests itself, which takes fifty
// times their size, and sends reflection's back: so they have to be small, and not compressed.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace retroinfer::common {

inline constexpr int64_t kOwnServiceBytesMax = 64 << 10;  // of all requests of a call

// `path`: "/package.Service/Method".
inline bool IsOwnService(std::string_view path) { return path.starts_with("/grpc."); }

// How a call with more bytes ends.
inline absl::Status TooMuchForOwnService() {
  return WithReason(absl::ResourceExhaustedError(
                        absl::StrCat("a call of a service of gRPC's own takes requests of ",
                                     kOwnServiceBytesMax, " bytes, all together")),
                    "REQUEST_TOO_LARGE");
}

// How a call of `path` whose requests are encoded in that way ends, if it is not OK.
inline absl::Status CheckOwnServiceEncoding(std::string_view path, std::string_view encoding) {
  if (!IsOwnService(path) || encoding.empty() || encoding == "identity") return absl::OkStatus();
  return absl::UnimplementedError("gRPC's own services take no compressed requests");
}

}  // namespace retroinfer::common
