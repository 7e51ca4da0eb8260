// Limits how fast the calls of one connection may get lost.
#pragma once

#include <algorithm>

#include "absl/time/time.h"
#include "common/door/token_bucket.h"

namespace retroinfer::common {

// A connection has a few tokens of its own; beyond them it needs those that all share, and each of
// these is a strike.
//
// Threads: one at a time.
class LostCallLimiter {
 public:
  struct Limits {
    double own_per_second;
    double own_burst;
    double strikes_forgiven_per_second;
    double strikes_max;
  };

  // REQUIRES: `shared` outlives this object.
  LostCallLimiter(const Limits& limits, TokenBucket* shared)
      : own_(limits.own_per_second, limits.own_burst),
        strikes_(limits.strikes_forgiven_per_second, limits.strikes_max),
        shared_(shared) {}

  // Takes a token. Returns false, and when to try again, if there is none.
  bool Allow(absl::Time now, absl::Time* again) {
    if (own_.Take(now)) return true;
    if (!shared_->Take(now)) {
      *again = std::min(own_.NextAt(now), shared_->NextAt(now));
      return false;
    }
    strikes_.Charge(now);
    return true;
  }
  // The same, but from the shared tokens alone and without strikes: the client has gone.
  bool AllowOfAll(absl::Time now, absl::Time* again) {
    if (shared_->Take(now)) return true;
    *again = shared_->NextAt(now);
    return false;
  }
  // Pays for a call that is lost already. Returns when there will be a token again.
  absl::Time Charge(absl::Time now) {
    if (own_.Take(now)) return now;
    strikes_.Charge(now);
    shared_->Charge(now);
    return shared_->NextAt(now);
  }
  bool TooMany(absl::Time now) { return !strikes_.Has(now); }

 private:
  TokenBucket own_;
  TokenBucket strikes_;
  TokenBucket* const shared_;
};

}  // namespace retroinfer::common
