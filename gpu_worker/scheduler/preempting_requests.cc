#include "gpu_worker/scheduler/preempting_requests.h"

#include "gpu_worker/scheduler/request_predicates.h"

namespace retroinfer {
namespace {

// A tenant's requests may be preempted for another tenant's of the same class once the tenant was
// served this much more. In tokens over weight.
constexpr double kFarOver = 8192;

}  // namespace

void PreemptingRequests::Update(double now) {
  absl::erase_if(since_, [&](const auto& entry) { return now - entry.second >= kReservedSeconds; });
}

bool PreemptingRequests::Contains(const RequestDescription& request, double now) const {
  const auto found = since_.find(request.id);
  return found != since_.end() && now - found->second < kReservedSeconds;
}

const RequestDescription* PreemptingRequests::FindWaiting(const SchedulerInput& input) const {
  if (since_.empty()) return nullptr;
  for (const RequestDescription& request : input.requests) {
    if (WaitsForMemory(request) && !request.arena_is_full && Contains(request, input.now)) {
      return &request;
    }
  }
  return nullptr;
}

bool PreemptingRequests::MayBePreempted(const RequestDescription& one,
                                        const RequestDescription& other) const {
  // The class that was asked for, without ageing: else two requests could preempt each other in
  // turn.
  if (one.priority != other.priority) return one.priority > other.priority;
  return one.tenant != other.tenant &&
         shares_.Served(one.tenant) - shares_.Served(other.tenant) > kFarOver;
}

}  // namespace retroinfer
