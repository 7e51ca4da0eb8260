// Outcomes of what earlier plans began: which requests end, which prompts are finished, which
// requests the store has answered, which copies are done. All other planning depends on outcomes
// and comes after them.
#pragma once

#include <optional>

#include "gpu_worker/scheduler/step_plan.h"
#include "gpu_worker/scheduler/time_estimates.h"

namespace retroinfer {

// Threads: one at a time.
// Owns:    nothing; `times` outlives the object.
class OutcomePlanner {
 public:
  explicit OutcomePlanner(const TimeEstimates& times) : times_(times) {}

  // Plans plan.end, grant, put_back, finish, leave and rejoin.
  void Plan(const SchedulerInput& input, StepPlan& plan) const;

 private:
  // The request's ending, if it ends now.
  std::optional<StepPlan::Ending> EndingOf(const SchedulerInput& input,
                                           const RequestDescription& request) const;
  // Lower bound of the seconds until the request's first token; 0 if the costs are not known, or
  // the request has no deadline.
  double LeastSecondsToFirst(const SchedulerInput& input, const RequestDescription& request) const;

  const TimeEstimates& times_;
};

}  // namespace retroinfer
