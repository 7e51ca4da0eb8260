// Which waiting requests begin, and which suspended ones are resumed: which of them get device
// memory, and ask the store for extents.
#pragma once

#include "gpu_worker/scheduler/batch_rows.h"
#include "gpu_worker/scheduler/block_growth.h"
#include "gpu_worker/scheduler/blocked_requests.h"
#include "gpu_worker/scheduler/memory_bank.h"
#include "gpu_worker/scheduler/request_order.h"
#include "gpu_worker/scheduler/scheduler_options.h"
#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer {

// Threads: one at a time.
// Owns:    nothing; all arguments outlive the object.
class AdmissionPlanner {
 public:
  // `blocked` learns which requests lacked memory when their turn came.
  AdmissionPlanner(const SchedulerOptions& options, const BatchRows& rows,
                   const BlockGrowth& growth, BlockedRequests& blocked)
      : options_(options), rows_(rows), growth_(growth), blocked_(blocked) {}

  // Plans plan.admit, ask and resume. The head of line is tried first; memory that it cannot take
  // yet is reserved for it in the bank. Requests that can be read at once are put back into
  // `order`, for the groups of this plan.
  //
  // Cost: O(requests), 32 times at most.
  void Plan(const SchedulerInput& input, MemoryBank& bank, RequestOrder& order, StepPlan& plan);

 private:
  const SchedulerOptions& options_;
  const BatchRows& rows_;
  const BlockGrowth& growth_;
  BlockedRequests& blocked_;
};

}  // namespace retroinfer
