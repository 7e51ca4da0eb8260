// Which rows of which lane go through which layer before the next decode step, and which prompts
// are finished by that.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "gpu_worker/scheduler/priority_levels.h"
#include "gpu_worker/scheduler/scheduler_options.h"
#include "gpu_worker/scheduler/step_plan.h"
#include "gpu_worker/scheduler/tenant_shares.h"
#include "gpu_worker/scheduler/time_estimates.h"

namespace retroinfer {

// Threads: one at a time.
// Owns:    the time that each lane was given lately; all arguments outlive the object.
class PassPlanner {
 public:
  // Share of the time that a lane with work gets in any case.
  static constexpr double kLeastShare = 0.2;

  // `shares` is charged for what is planned.
  PassPlanner(const SchedulerOptions& options, const PriorityLevels& levels,
              const TimeEstimates& times, TenantShares& shares)
      : options_(options), levels_(levels), times_(times), shares_(shares) {}

  // Plans plan.passes, within the time that the step leaves, and plan.finish; adds the requests
  // that finish to plan.decode, as far as there are rows. Moves `lanes` on.
  //
  // REQUIRES: plan.decode and plan.measure are planned.
  void Plan(const SchedulerInput& input, std::vector<LaneDescription>& lanes, StepPlan& plan);

 private:
  std::optional<size_t> NextLane(double now, const std::vector<LaneDescription>& lanes) const;
  StepPlan::Pass PassOf(const LaneDescription& lane, size_t index, double limit,
                        bool is_clustering) const;
  void PlanFirstStep(const LaneDescription& lane, StepPlan& plan);
  void Charge(const LaneDescription& lane, const StepPlan::Pass& pass);

  const SchedulerOptions& options_;
  const PriorityLevels& levels_;
  const TimeEstimates& times_;
  TenantShares& shares_;
  std::vector<double> lane_seconds_;  // planned for each lane since all lanes had work
};

}  // namespace retroinfer
