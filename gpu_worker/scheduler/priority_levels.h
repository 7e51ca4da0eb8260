// Ageing: the level at which a request is served, from its priority and the time that it has
// waited.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer {

// Threads: one at a time.
class PriorityLevels {
 public:
  static constexpr double kLevelSeconds = 10;
  // Seconds of work that a second of waiting makes up for, among requests of one level and tenant.
  static constexpr double kAgeing = 0.1;

  // Notes the highest priority (the least number) among the requests of this plan.
  void Update(const SchedulerInput& input) {
    highest_ = std::numeric_limits<int32_t>::max();
    for (const RequestDescription& request : input.requests) {
      highest_ = std::min<int64_t>(highest_, request.priority);
    }
  }

  // Returns the level of a request that has waited so many seconds; the lowest is served first. A
  // waiting request moves up, but not above the highest priority there is: among requests of the
  // highest level the tenants' shares decide.
  int64_t LevelOf(int32_t priority, double waited) const {
    return std::max(priority - static_cast<int64_t>(waited / kLevelSeconds), highest_);
  }

 private:
  int64_t highest_ = 0;
};

}  // namespace retroinfer
