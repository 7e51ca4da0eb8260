// Remembers the round that was furthest from what it was expected to take, and logs it now and
// then: what to look at when tokens of streams are further apart than the target.
//
// Threads: one at a time.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "gpu_worker/scheduler/cost_model.h"

namespace retroinfer {

class RoundLog {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(10);
  // What is worth a line: so much longer than expected, and so much of a target.
  static constexpr double kLeastTimes = 1.2;
  static constexpr double kLeastSeconds = 0.005;

  // The device took `seconds` for `work`, of which `costs` knows nothing yet. Logs the worst round
  // of the last kInterval, at level debug, if one is worth it; returns the line, or nothing.
  std::string Add(const CostModel& costs, const Work& work, double seconds, absl::Time now);

 private:
  std::string worst_;
  double worst_late_ = 0;  // seconds
  absl::Time told_ = absl::InfinitePast();
};

// What a round was made of, each part with the time that it was expected to take.
std::string DescribeRound(const CostModel& costs, const Work& work, double seconds);

}  // namespace retroinfer
