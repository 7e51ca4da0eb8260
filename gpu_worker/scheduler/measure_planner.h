// Plans the scoring of given tokens: rows of prompts, and further rows of given continuations. The
// ends of prompts that steps are fed are planned elsewhere (tail_planner.h).
#pragma once

#include "gpu_worker/scheduler/priority_levels.h"
#include "gpu_worker/scheduler/scheduler_options.h"
#include "gpu_worker/scheduler/step_plan.h"
#include "gpu_worker/scheduler/tenant_shares.h"
#include "gpu_worker/scheduler/time_estimates.h"

namespace retroinfer {

// Threads: one at a time.
// Owns:    nothing; all arguments outlive the object.
class MeasurePlanner {
 public:
  // `shares` is charged for what is planned.
  MeasurePlanner(const SchedulerOptions& options, const PriorityLevels& levels,
                 const TimeEstimates& times, TenantShares& shares)
      : options_(options), levels_(levels), times_(times), shares_(shares) {}

  // Plans plan.measure: batches of rows to measure, from one lane, for at most half of the time
  // that prompts get. REQUIRES: plan.decode is planned.
  void Plan(const SchedulerInput& input, StepPlan& plan);
  // Adds to plan.decode: fills the step's free rows with further tokens of given continuations, one
  // for each request in turn. The target holds where the step generates for a client; any other
  // step takes at most TimeEstimates::kMostOfGiven times as long as with one row of each request.
  // REQUIRES: all else is planned.
  void PlanMoreRows(const SchedulerInput& input, StepPlan& plan);

 private:
  struct MoreRows {
    const RequestDescription* request;
    int64_t left;
  };
  // Adds a row of the request to the step, unless that takes longer than `limit`. Returns whether
  // it did.
  bool AddRow(const RequestDescription& request, double used, double limit, StepPlan& plan);

  const SchedulerOptions& options_;
  const PriorityLevels& levels_;
  const TimeEstimates& times_;
  TenantShares& shares_;
};

}  // namespace retroinfer
