// Logs, every kInterval, the round that exceeded its expected time most: look there when the tokens
// of a stream are further apart than the target.
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
  // A round is worth a line if it takes kLeastTimes the expected time, and kLeastSeconds more.
  static constexpr double kLeastTimes = 1.2;
  static constexpr double kLeastSeconds = 0.005;

  // The device took `seconds` for `work`, which `costs` has not observed yet. Logs the worst round
  // of the last kInterval, at level debug, if a round is worth a line; returns the line, or "".
  std::string Add(const CostModel& costs, const Work& work, double seconds, absl::Time now);

 private:
  std::string worst_;
  double worst_late_ = 0;  // seconds
  absl::Time told_ = absl::InfinitePast();
};

// The parts of a round's work, each with its expected time.
std::string DescribeRound(const CostModel& costs, const Work& work, double seconds);

}  // namespace retroinfer
