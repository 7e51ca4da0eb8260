// Plans the scoring of given tokens: rows of prompts, and further rows of given continuations.
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
  // Adds to plan.decode: fills the step's free rows with further tokens of prompts' ends, the
  // shortest first, then of given continuations, one for each request in turn. The target holds
  // where the step generates for a client; a step that only scores takes at most kMostOfScoring
  // times as long as without them. REQUIRES: all else is planned.
  void PlanMoreRows(const SchedulerInput& input, StepPlan& plan);

 private:
  // Most that further rows of given tokens lengthen a step that generates for nobody. A token costs
  // at most twice what it costs in the largest step, and a request that arrives waits for two steps
  // of one row at most.
  static constexpr double kMostOfScoring = 2;

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
