// Keeps a flood of equal log lines short.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace retroinfer::common {

// Lets `burst` lines through per interval and counts the others.
//
// Threads: one at a time.
class LogRateLimiter {
 public:
  explicit LogRateLimiter(absl::Duration interval, int burst = 1)
      : interval_(interval), burst_(burst) {}

  // Returns nothing if the line is to be left out; otherwise how many were left out since the last.
  std::optional<uint64_t> Admit(absl::Time now) {
    if (now >= next_) {
      next_ = now + interval_;
      admitted_ = 0;
    }
    if (admitted_ >= burst_) {
      ++suppressed_;
      return std::nullopt;
    }
    ++admitted_;
    const uint64_t suppressed = suppressed_;
    suppressed_ = 0;
    return suppressed;
  }

 private:
  const absl::Duration interval_;
  const int burst_;
  int admitted_ = 0;  // in this interval
  absl::Time next_ = absl::InfinitePast();
  uint64_t suppressed_ = 0;
};

}  // namespace retroinfer::common
