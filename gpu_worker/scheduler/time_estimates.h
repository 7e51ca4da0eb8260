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
  // Most that further rows of given tokens lengthen a step that generates for nobody. A token costs
  // at most twice what it costs in the largest step, and a request that arrives waits for two steps
  // of one row at most.
  static constexpr double kMostOfGiven = 2;

  TimeEstimates(const SchedulerOptions& options, const CostModel& costs)
      : options_(options), costs_(costs) {}

  const CostModel& costs() const { return costs_; }

  // Seconds that the prompt of a request takes alone, its tail included, whose text counts as warm:
  // somebody else may have attended to the text by then.
  double SecondsToRead(const RequestDescription& request) const;
  // Seconds until the lane's group has gone through all layers, alone; 0 for a lane without work.
  double SecondsLeft(const LaneDescription& lane) const;
  // Seconds that the work takes; sets work.seconds_beside_clustering.
  double SecondsBeside(bool is_clustering, Work& work) const;
  // Seconds that the plan's passes and measures take.
  double SecondsBesideStep(const StepPlan& plan) const;
  // Seconds that the plan's measures take.
  double SecondsToMeasure(const StepPlan& plan) const;
  // Seconds that prompts get beside a decode step of `step` seconds, of `target` seconds between
  // two tokens. A step that takes all of the target leaves prompts a share of its own time.
  static double SecondsForPrompts(double target, double step);
  // Seconds for which a round is planned, such that nearly every round keeps to the target.
  double SecondsOfRound() const;
  // Seconds that a step takes longer by these tokens of a tail.
  double SecondsOfTail(const RequestDescription& request) const;
  // Lower bound of the seconds until the first token of a waiting request: the time of its own
  // prompt, and of its tenant's prompts that certainly come before. Cost: O(requests).
  double EarliestFirstToken(const SchedulerInput& input, const RequestDescription& request) const;

 private:
  const SchedulerOptions& options_;
  const CostModel& costs_;
};

}  // namespace retroinfer
