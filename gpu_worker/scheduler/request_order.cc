#include "gpu_worker/scheduler/request_order.h"

#include <algorithm>
#include <limits>

#include "gpu_worker/scheduler/request_predicates.h"

namespace retroinfer {

RequestOrder::RequestOrder(const SchedulerInput& input, const PriorityLevels& levels,
                           const TenantShares& shares, const TimeEstimates& times,
                           const PreemptingRequests& preempting)
    : input_(input),
      levels_(levels),
      shares_(shares),
      times_(times),
      preempting_(preempting),
      tentative_(input.weights.size(), 0.0) {
  for (const RequestDescription& request : input.requests) {
    if (WaitsForMemory(request) || request.phase == RequestPhase::kReady) PutBack(request);
  }
}

void RequestOrder::Charge(const RequestDescription& request) {
  tentative_[request.tenant] +=
      static_cast<double>(request.prompt_tokens) / input_.weights[request.tenant];
}

void RequestOrder::PutBack(const RequestDescription& request) {
  const double waited = std::max(0.0, input_.now - request.arrival);
  const bool is_read = request.phase == RequestPhase::kSuspended;
  const double left = is_read ? 0 : times_.SecondsToRead(request);
  // Others were preempted for this request: if another request took their memory first, the
  // suspensions would have been for nothing.
  const int64_t level = preempting_.Contains(request, input_.now)
                            ? std::numeric_limits<int64_t>::min()
                            : levels_.LevelOf(request.priority, waited);
  left_.push_back({&request, level, left - PriorityLevels::kAgeing * waited});
}

bool RequestOrder::IsBefore(const Candidate& a, const Candidate& b) const {
  if (a.level != b.level) return a.level < b.level;
  if (a.request->tenant != b.request->tenant) {
    const double served_a = Served(a), served_b = Served(b);
    if (served_a != served_b) return served_a < served_b;
  }
  if (a.score != b.score) return a.score < b.score;
  return a.request->id < b.request->id;
}

}  // namespace retroinfer
