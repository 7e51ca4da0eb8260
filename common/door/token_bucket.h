// A rate with a burst.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace retroinfer::common {

// Holds up to `burst` tokens and gains `per_second`. May be overdrawn: what has happened already is
// charged by Charge(), and the debt has to be gained back first.
//
// Threads: one at a time.
class TokenBucket {
 public:
  // Begins full.
  TokenBucket(double per_second, double burst)
      : per_second_(per_second), burst_(burst), tokens_(burst) {}

  bool Has(absl::Time now) {
    Fill(now);
    return tokens_ >= 1;
  }
  // Takes a token if there is one.
  bool Take(absl::Time now) {
    if (!Has(now)) return false;
    tokens_ -= 1;
    return true;
  }
  // Takes a token in any case.
  void Charge(absl::Time now) {
    Fill(now);
    tokens_ -= 1;
  }
  // When there will be a token, if nobody takes one before.
  absl::Time NextAt(absl::Time now) {
    Fill(now);
    return tokens_ >= 1 ? now : now + absl::Seconds((1 - tokens_) / per_second_);
  }

 private:
  void Fill(absl::Time now) {
    if (now > filled_) {
      const double gained = absl::ToDoubleSeconds(now - filled_) * per_second_;
      tokens_ = std::min(burst_, tokens_ + gained);
    }
    filled_ = now;
  }

  const double per_second_;
  const double burst_;
  double tokens_;
  absl::Time filled_ = absl::InfinitePast();
};

}  // namespace retroinfer::common
