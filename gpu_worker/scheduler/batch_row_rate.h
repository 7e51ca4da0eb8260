// How fast rows of the batch become free while all rows are taken: the wait for a row comes on top
// of the time of a request's prompt.
//
// Threads: one at a time.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer {

class BatchRowRate {
 public:
  // To be called with each plan's input. `are_taken`: all rows of the batch are taken.
  void Update(const SchedulerInput& input, bool are_taken);
  // Expected seconds until `count` rows have become free; 0 while that is not known.
  double SecondsUntilFree(int64_t count) const;

 private:
  absl::flat_hash_set<uint64_t> decoding_;  // at the last update
  bool were_taken_ = false;
  double last_ = -1;  // seconds; time of the last update, -1: none
  // Seconds for which all rows were taken, and requests that ended in that time. Both sums decay
  // alike.
  double seconds_ = 0;
  double freed_ = 0;
};

}  // namespace retroinfer
