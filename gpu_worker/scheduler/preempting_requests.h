// The requests for which others were preempted: what the others gave up is reserved for them, for
// a while. And the rule who may preempt whom.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "gpu_worker/scheduler/step_plan.h"
#include "gpu_worker/scheduler/tenant_shares.h"

namespace retroinfer {

// Threads: one at a time.
// Owns:    ids and times; `shares` outlives the object.
class PreemptingRequests {
 public:
  // Seconds for which freed memory and rows are reserved for a preempting request.
  static constexpr double kReservedSeconds = 2;

  explicit PreemptingRequests(const TenantShares& shares) : shares_(shares) {}

  // Forgets requests whose reservation is over.
  void Update(double now);
  // Notes that others are suspended for the request now.
  void Add(const RequestDescription& request, double now) { since_[request.id] = now; }
  // As Add(), but a reservation that runs already is not prolonged.
  void AddOnce(const RequestDescription& request, double now) {
    since_.try_emplace(request.id, now);
  }

  // Whether others were preempted for the request within the last kReservedSeconds.
  bool Contains(const RequestDescription& request, double now) const;
  bool empty() const { return since_.empty(); }
  // Returns the first such request that waits for device memory and has room in the arena; null if
  // there is none. Cost: O(requests).
  const RequestDescription* FindWaiting(const SchedulerInput& input) const;

  // Whether `one` may be suspended for `other`: requests of a lower class may, and those of the
  // same class whose tenant was served far more than the other's.
  bool MayBePreempted(const RequestDescription& one, const RequestDescription& other) const;

 private:
  const TenantShares& shares_;
  absl::flat_hash_map<uint64_t, double> since_;  // by request id: seconds
};

}  // namespace retroinfer
