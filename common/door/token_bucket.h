// A rate with a burst.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace retroinfer::common {

// Holds up to `burst` tokens and gains `per_second`. May be overdrawn: what has happened already is
// charged by Charge(), and the debt has to be gained back first.
//
// Kept is the time at which the bucket will be full, in the clock's own ticks (the "virtual
// scheduling" form of ITU-T I.371's generic cell rate algorithm). A number of tokens would be
// rounded: with 0.9999999999 of them there is none to take, and the next one is due in no time at
// all, so that whoever waits for it turns round for ever.
//
// Threads: one at a time.
class TokenBucket {
 public:
  // Begins full.
  //
  // REQUIRES: per_second > 0, burst >= 1
  TokenBucket(double per_second, double burst)
      : interval_(absl::Seconds(1 / per_second)), slack_((burst - 1) * interval_) {}

  bool Has(absl::Time now) const { return full_at_ - slack_ <= now; }
  // Takes a token if there is one.
  bool Take(absl::Time now) {
    if (!Has(now)) return false;
    Charge(now);
    return true;
  }
  // Takes a token in any case.
  void Charge(absl::Time now) { full_at_ = std::max(full_at_, now) + interval_; }
  // When there will be a token, if nobody takes one before: `now`, or if there is none, later.
  absl::Time NextAt(absl::Time now) const { return std::max(now, full_at_ - slack_); }

 private:
  const absl::Duration interval_;  // in which one token is gained
  const absl::Duration slack_;     // in which all but one are gained
  absl::Time full_at_ = absl::InfinitePast();
};

}  // namespace retroinfer::common
