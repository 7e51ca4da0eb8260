// Which prompts are read together: several short prompts, one long prompt alone in its lane, and
// the prompts of a prefix group, whose common cached tokens are read once.
#pragma once

#include <vector>

#include "gpu_worker/scheduler/batch_rows.h"
#include "gpu_worker/scheduler/prefix_groups.h"
#include "gpu_worker/scheduler/request_order.h"
#include "gpu_worker/scheduler/scheduler_options.h"
#include "gpu_worker/scheduler/step_plan.h"
#include "gpu_worker/scheduler/time_estimates.h"

namespace retroinfer {

// Threads: one at a time.
// Owns:    what is known of prefix groups; all arguments outlive the object.
class GroupPlanner {
 public:
  GroupPlanner(const SchedulerOptions& options, const TimeEstimates& times, const BatchRows& rows)
      : options_(options), times_(times), rows_(rows), prefix_groups_(options, times) {}

  // Plans plan.begin: fills free lanes with ready requests, the shortest lane first, and describes
  // the new groups in `lanes`, for the passes of this plan.
  void Plan(const SchedulerInput& input, RequestOrder& order, std::vector<LaneDescription>& lanes,
            StepPlan& plan);

 private:
  struct Builder;
  bool MayShare(const Builder& builder, const RequestDescription& request) const;
  bool MayJoin(const Builder& builder, const RequestDescription& request);
  bool Join(const RequestDescription& request, Builder& builder);

  const SchedulerOptions& options_;
  const TimeEstimates& times_;
  const BatchRows& rows_;
  PrefixGroups prefix_groups_;
};

}  // namespace retroinfer
