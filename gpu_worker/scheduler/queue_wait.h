// How long a request that comes now would wait in the queue.
#pragma once

#include "gpu_worker/scheduler/batch_row_rate.h"
#include "gpu_worker/scheduler/batch_rows.h"
#include "gpu_worker/scheduler/scheduler_options.h"
#include "gpu_worker/scheduler/step_plan.h"
#include "gpu_worker/scheduler/time_estimates.h"

namespace retroinfer {

// Threads: one at a time.
// Owns:    the rate at which rows of the batch come free; arguments outlive the object.
class QueueWait {
 public:
  QueueWait(const SchedulerOptions& options, const TimeEstimates& times, const BatchRows& rows)
      : options_(options), times_(times), rows_(rows) {}

  // To be called with each input that is planned, once.
  void Update(const SchedulerInput& input) {
    batch_row_rate_.Update(input, rows_.NumFree(input) <= 0);
  }
  // Seconds until all prompts that wait or are being read have been read, beside the decode steps,
  // and until all their requests have a row of the batch: how long the last request of the queue
  // would wait. Cost: O(requests).
  double Expected(const SchedulerInput& input) const;

 private:
  const SchedulerOptions& options_;
  const TimeEstimates& times_;
  const BatchRows& rows_;
  BatchRowRate batch_row_rate_;
};

}  // namespace retroinfer
