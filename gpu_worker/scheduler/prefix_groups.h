// Prefix groups: requests whose prompts begin with the same segment. Knows how many requests of a
// group come at a time, and so whether waiting for others of the group pays.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "gpu_worker/scheduler/scheduler_options.h"
#include "gpu_worker/scheduler/step_plan.h"
#include "gpu_worker/scheduler/time_estimates.h"

namespace retroinfer {

// Threads: one at a time.
// Owns:    counts and times; options and estimates outlive the object.
class PrefixGroups {
 public:
  PrefixGroups(const SchedulerOptions& options, const TimeEstimates& times)
      : options_(options), times_(times) {}

  // Notes how many requests of each prefix group are live at a time.
  void Update(const SchedulerInput& input);
  // Whether the request, which could be read now, waits for others of its prefix group. The wait
  // begins when the first request of the group is ready, and is the same for all: requests that
  // come later do not prolong it. Cost: O(requests).
  bool WaitsForOthers(const SchedulerInput& input, const RequestDescription& request);
  // The request is read now: its group waits no longer.
  void EndWait(const RequestDescription& request);

  size_t size() const { return groups_.size(); }

 private:
  // Requests with the same RequestDescription::prefix that were live at the same time.
  struct Group {
    double seen = 0;            // seconds; when two of the requests were live last
    int64_t size = 0;           // most requests that were live at a time
    double gathers_since = -1;  // when a ready request began to wait for others; -1: none waits
  };

  const SchedulerOptions& options_;
  const TimeEstimates& times_;
  absl::flat_hash_map<uint64_t, Group> groups_;  // by RequestDescription::prefix
};

}  // namespace retroinfer
