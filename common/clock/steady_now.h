// Time that does not jump.
#pragma once

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace retroinfer::common {

// Returns the time of the wall clock as it would be if nobody had set that since this was first
// called: for time limits, pauses and how long something took. What is shown to people, kept on
// disk, compared with certificates or handed to gRPC takes absl::Now().
inline absl::Time SteadyNow() {
  const auto steady = [] {
    return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  };
  static const absl::Time zero = absl::Now() - steady();
  return zero + steady();
}

// Returns the time of SteadyNow() that is as far away as `wall`, a time of the wall clock, is now.
inline absl::Time SteadyTimeOf(absl::Time wall) { return SteadyNow() + (wall - absl::Now()); }

}  // namespace retroinfer::common
