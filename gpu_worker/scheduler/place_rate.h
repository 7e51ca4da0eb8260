// How often places of the batch become free, as far as they are all taken: what those who wait for
// one have to wait for besides the time of their prompts.
//
// Threads: one at a time.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer {

class PlaceRate {
 public:
  // To be told of each plan's input. `are_taken`: nobody else can begin to decode now.
  void Update(const SchedulerInput& input, bool are_taken);
  // Seconds until `count` places have become free; 0 where that is not known.
  double SecondsUntilFree(int64_t count) const;

 private:
  absl::flat_hash_set<uint64_t> decoding_;  // at the last update
  bool were_taken_ = false;
  double last_ = -1;
  // For how long all places were taken, and how many came free in that time. What is old counts
  // less and less, in both sums alike.
  double seconds_ = 0;
  double freed_ = 0;
};

}  // namespace retroinfer
