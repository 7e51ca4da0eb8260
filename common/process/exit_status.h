// What a service returns to who started it.
#pragma once

#include <cstdlib>

#include "absl/status/status.h"

namespace retroinfer::common {

// Settings that make no sense: a supervisor does not start the service again.
inline constexpr int kExitRefusesSettings = 2;

// Of a service that `status` keeps from serving. INVALID_ARGUMENT is about its settings.
inline int ExitStatusOf(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? kExitRefusesSettings : EXIT_FAILURE;
}

}  // namespace retroinfer::common
