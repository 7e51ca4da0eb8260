// The rows of the batch: which requests decode in the next step, and how many rows are free.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu_worker/scheduler/scheduler_options.h"
#include "gpu_worker/scheduler/step_plan.h"
#include "gpu_worker/scheduler/time_estimates.h"

namespace retroinfer {

// Threads: one at a time.
// Owns:    nothing; all arguments outlive the object.
class BatchRows {
 public:
  // A row belongs to a request that decodes, or will decode within so many seconds.
  static constexpr double kAheadSeconds = 1;

  BatchRows(const SchedulerOptions& options, const TimeEstimates& times)
      : options_(options), times_(times) {}

  // Returns the requests that get a row of the step now: they can decode, and have memory for a
  // token, or get it by plan.grow.
  std::vector<const RequestDescription*> NextStep(const SchedulerInput& input,
                                                  const StepPlan& plan) const;
  // Returns how many rows belong to no request; negative where more requests will decode soon than
  // there are rows. A stalled request has no row: others may have to end before it goes on.
  int64_t NumFree(const SchedulerInput& input) const;

 private:
  const SchedulerOptions& options_;
  const TimeEstimates& times_;
};

}  // namespace retroinfer
