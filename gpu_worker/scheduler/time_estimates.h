// Seconds that planned or waiting work takes, by the cost model.
#pragma once

#include <cstdint>

#include "gpu_worker/scheduler/cost_model.h"
#include "gpu_worker/scheduler/scheduler_options.h"
#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer {

// Threads: one at a time.
// Owns:    nothing; options and costs outlive the object.
class TimeEstimates {
 public:
  TimeEstimates(const SchedulerOptions& options, const CostModel& costs)
      : options_(options), costs_(costs) {}

  const CostModel& costs() const { return costs_; }

  // Seconds that the prompt of a request takes alone.
  double SecondsToRead(const RequestDescription& request) const;
  // Seconds until the lane's group has gone through all layers, alone; 0 for a lane without work.
  double SecondsLeft(const LaneDescription& lane) const;
  // Seconds that the work takes; sets work.seconds_beside_clustering.
  double SecondsBeside(bool is_clustering, Work& work) const;
  // Seconds that the plan's measures take.
  double SecondsToMeasure(const StepPlan& plan) const;
  // Seconds that prompts get beside a decode step of `step` seconds, of `target` seconds between
  // two tokens. A step that takes all of the target leaves prompts a share of its own time.
  static double SecondsForPrompts(double target, double step);
  // Lower bound of the seconds until the first token of a waiting request: the time of its own
  // prompt, and of its tenant's prompts that certainly come before. Cost: O(requests).
  double EarliestFirstToken(const SchedulerInput& input, const RequestDescription& request) const;

 private:
  const SchedulerOptions& options_;
  const CostModel& costs_;
};

}  // namespace retroinfer
