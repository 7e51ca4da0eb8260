// Which requests are suspended for which. A request that waits for a row of the batch or for device
// memory may preempt decoding requests: requests of a lower class, and requests of its own class
// whose tenant was served far more than its own tenant.
//
// What keeps requests from preempting each other in turn:
// * A class is the priority that was asked for, without ageing: if a request may preempt another,
//   the other may not preempt it.
// * A request is suspended kMaxSuspensions times at most. After the first resumption it decodes for
//   kLeastStay at least, after the second one twice as long, and so on.
// * A request is suspended only if the suspensions of this plan, and those that are under way, are
//   enough for the waiting request.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu_worker/scheduler/batch_rows.h"
#include "gpu_worker/scheduler/block_growth.h"
#include "gpu_worker/scheduler/blocked_requests.h"
#include "gpu_worker/scheduler/memory_bank.h"
#include "gpu_worker/scheduler/output_lengths.h"
#include "gpu_worker/scheduler/preempting_requests.h"
#include "gpu_worker/scheduler/scheduler_options.h"
#include "gpu_worker/scheduler/step_plan.h"
#include "gpu_worker/scheduler/step_resources.h"
#include "gpu_worker/scheduler/tenant_shares.h"

namespace retroinfer {

// Threads: one at a time.
// Owns:    nothing; all arguments outlive the object.
class SuspensionPlanner {
 public:
  // How often a request is suspended at most, and how long it decodes after the first resumption
  // before it may be suspended again.
  static constexpr int32_t kMaxSuspensions = 16;
  static constexpr double kLeastStay = 1;  // seconds

  // `preempting` learns for which requests others are suspended.
  SuspensionPlanner(const SchedulerOptions& options, const TenantShares& shares,
                    const BatchRows& rows, const OutputLengths& lengths, const BlockGrowth& growth,
                    const BlockedRequests& blocked, PreemptingRequests& preempting)
      : options_(options),
        shares_(shares),
        rows_(rows),
        lengths_(lengths),
        growth_(growth),
        blocked_(blocked),
        preempting_(preempting) {}

  // Plans plan.suspend, for one waiting request at most. Does nothing unless options.preempts.
  void Plan(const SchedulerInput& input, StepPlan& plan);

 private:
  using Requests = std::vector<const RequestDescription*>;
  using RequestSpan = std::span<const RequestDescription* const>;
  // What the waiting requests of one plan compete for.
  struct Contest;
  enum class Turn { kDone, kNext };

  StepResources FreeResources(const SchedulerInput& input) const;
  Requests WaitingRequests(const SchedulerInput& input, RequestSpan batch) const;
  Requests Candidates(RequestSpan decoding, const RequestDescription& waiting, double now) const;
  Turn Consider(const SchedulerInput& input, const RequestDescription& waiting, Contest& contest,
                StepPlan& plan);

  const SchedulerOptions& options_;
  const TenantShares& shares_;
  const BatchRows& rows_;
  const OutputLengths& lengths_;
  const BlockGrowth& growth_;
  const BlockedRequests& blocked_;
  PreemptingRequests& preempting_;
};

}  // namespace retroinfer
