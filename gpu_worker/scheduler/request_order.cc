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
      tentative_(input.weights.size(), 0.0),
      queues_(input.weights.size()) {
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
  Push({&request, level, left - PriorityLevels::kAgeing * waited, request.id, request.tenant});
}

bool RequestOrder::IsBeforeOfTenant(const Candidate& a, const Candidate& b) {
  if (a.level != b.level) return a.level < b.level;
  if (a.score != b.score) return a.score < b.score;
  return a.id < b.id;
}

bool RequestOrder::IsBefore(const Candidate& a, const Candidate& b) const {
  if (a.level == b.level && a.tenant != b.tenant) {
    const double served_a = Served(a), served_b = Served(b);
    if (served_a != served_b) return served_a < served_b;
  }
  return IsBeforeOfTenant(a, b);
}

const RequestDescription* RequestOrder::TakeOut(const Place& place) {
  if (place.index == SIZE_MAX) return nullptr;
  const RequestDescription* const request = At(place).request;
  Queue& queue = queues_[place.tenant];
  queue.left[place.index] = queue.left.back();
  queue.left.pop_back();
  queue.is_heap = false;
  return request;
}

size_t RequestOrder::TenantOfFirst() {
  size_t first = queues_.size();
  for (size_t tenant = 0; tenant < queues_.size(); ++tenant) {
    Queue& queue = queues_[tenant];
    if (queue.left.empty()) continue;
    if (!queue.is_heap) {
      std::make_heap(queue.left.begin(), queue.left.end(), IsAfterOfTenant);
      queue.is_heap = true;
    }
    if (first == queues_.size() || IsBefore(queue.left.front(), queues_[first].left.front())) {
      first = tenant;
    }
  }
  return first;
}

RequestOrder::Candidate RequestOrder::Pop(size_t tenant) {
  std::vector<Candidate>& left = queues_[tenant].left;
  std::pop_heap(left.begin(), left.end(), IsAfterOfTenant);
  const Candidate first = left.back();
  left.pop_back();
  return first;
}

void RequestOrder::Push(const Candidate& candidate) {
  Queue& queue = queues_[candidate.tenant];
  queue.left.push_back(candidate);
  if (queue.is_heap) std::push_heap(queue.left.begin(), queue.left.end(), IsAfterOfTenant);
}

}  // namespace retroinfer
