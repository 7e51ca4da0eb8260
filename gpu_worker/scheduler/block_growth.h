// Which decoding requests get the further blocks that they ask for, and which are stalled for lack
// of blocks.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "gpu_worker/scheduler/memory_bank.h"
#include "gpu_worker/scheduler/preempting_requests.h"
#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer {

// Threads: one at a time.
// Owns:    ids and times; `preempting` outlives the object.
class BlockGrowth {
 public:
  explicit BlockGrowth(const PreemptingRequests& preempting) : preempting_(preempting) {}

  // Plans plan.grow: requests of a higher class grow first. Within a class, the request that has
  // decoded longest grows first: the earliest end frees blocks for the others. Notes who is stalled
  // after that.
  void Plan(const SchedulerInput& input, MemoryBank& bank, StepPlan& plan);

  // Since when the request has been stalled, in seconds; nothing if it was not at the last Plan().
  std::optional<double> StalledSince(const RequestDescription& request) const;
  // Whether a decoding request of the request's class, or a higher one, has been stalled for
  // BlockedRequests::kPatience and lacks a kind of blocks that the request would take. Then the
  // request does not begin: it would take the blocks that the stalled request waits for.
  bool IsBehindStalled(const RequestDescription& request, double now) const;

 private:
  struct Stall {
    double since = 0;  // seconds
    int32_t priority = 0;
    bool lacks_dense = false, lacks_meta = false;
  };
  bool GrowsLater(const RequestDescription& one, const RequestDescription& other, double now) const;

  const PreemptingRequests& preempting_;
  absl::flat_hash_map<uint64_t, Stall> stalled_;  // by request id
};

}  // namespace retroinfer
