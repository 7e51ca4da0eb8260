// Plans which drafted tokens are fed with a step: rows that may turn out to be for nothing.
#pragma once

#include "gpu_worker/scheduler/scheduler_options.h"
#include "gpu_worker/scheduler/step_plan.h"
#include "gpu_worker/scheduler/tenant_shares.h"
#include "gpu_worker/scheduler/time_estimates.h"

namespace retroinfer {

// Threads: one at a time.
// Owns:    nothing; all arguments outlive the object.
class DraftPlanner {
 public:
  // `shares` is charged for what is planned.
  DraftPlanner(const SchedulerOptions& options, const TimeEstimates& times, TenantShares& shares)
      : options_(options), times_(times), shares_(shares) {}

  // Adds to plan.decode: rows for drafts, as long as the step is expected to give more tokens a
  // second with one more, and fits into the batch and the limit on its time. Their number is a
  // power of two, or all rows that are free: a step of another number of rows has another shape,
  // which is recorded (executor/step_graphs.h). None, unless all of them together gain kLeastGain.
  // REQUIRES: passes and measurements are planned, and of each request at most one row.
  void Plan(const SchedulerInput& input, StepPlan& plan);

  // Tokens a second more than without drafts: what is less may be an error of the estimates.
  static constexpr double kLeastGain = 0.02;

 private:
  // Seconds that the round may take with drafts, of which `others` are for others than the step.
  double LimitOf(const StepPlan& plan, double others) const;

  const SchedulerOptions& options_;
  const TimeEstimates& times_;
  TenantShares& shares_;
};

}  // namespace retroinfer
