// A benchmark ends where something fails, and says what.
#pragma once

#include <errno.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace retroinfer::bench {

[[noreturn]] inline void Fail(const std::string& message) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, message.c_str());
  std::exit(1);
}

inline void Must(const absl::Status& status) {
  if (!status.ok()) Fail(status.ToString());
}

template <typename T>
T Must(absl::StatusOr<T> result) {
  Must(result.status());
  return *std::move(result);
}

}  // namespace retroinfer::bench
