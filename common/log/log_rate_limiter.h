// Keeps a flood of equal log lines short.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace retroinfer::common {

// Lets one line through per interval and counts the others.
//
// Threads: one at a time.
class LogRateLimiter {
 public:
  explicit LogRateLimiter(absl::Duration interval) : interval_(interval) {}

  // Returns nothing if the line is to be left out; otherwise how many were left out since the last.
  std::optional<uint64_t> Admit(absl::Time now) {
    if (now < next_) {
      ++suppressed_;
      return std::nullopt;
    }
    next_ = now + interval_;
    const uint64_t suppressed = suppressed_;
    suppressed_ = 0;
    return suppressed;
  }

 private:
  const absl::Duration interval_;
  absl::Time next_ = absl::InfinitePast();
  uint64_t suppressed_ = 0;
};

}  // namespace retroinfer::common
