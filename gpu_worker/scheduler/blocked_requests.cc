#include "gpu_worker/scheduler/blocked_requests.h"

#include <algorithm>
#include <limits>

#include "absl/container/flat_hash_set.h"
#include "gpu_worker/scheduler/priority_levels.h"
#include "gpu_worker/scheduler/request_predicates.h"

namespace retroinfer {

void BlockedRequests::Update(const SchedulerInput& input) {
  if (blocked_.empty()) return;
  absl::flat_hash_set<uint64_t> waiting;
  for (const RequestDescription& request : input.requests) {
    // A request that waits for the store's answer stays: if the arena is full, the request is
    // blocked as before, and its patience does not begin anew.
    if ((WaitsForMemory(request) || request.phase == RequestPhase::kReserving) &&
        blocked_.contains(request.id)) {
      waiting.insert(request.id);
    }
  }
  absl::erase_if(blocked_, [&](const auto& entry) { return !waiting.contains(entry.first); });
}

void BlockedRequests::Block(const SchedulerInput& input, const RequestDescription& request,
                            bool is_head) {
  Blocked& blocked = blocked_.try_emplace(request.id, Blocked{.since = input.now}).first->second;
  blocked.lacks_extents |= request.arena_is_full;
  if (!is_head || blocked.holders.has_value()) return;
  blocked.holders.emplace();
  for (const RequestDescription& one : input.requests) {
    if (!WaitsForMemory(one)) blocked.holders->push_back(one.id);
  }
  std::sort(blocked.holders->begin(), blocked.holders->end());
}

const RequestDescription* BlockedRequests::HeadOfLine(const SchedulerInput& input) const {
  const RequestDescription* head = nullptr;
  double since = std::numeric_limits<double>::infinity();
  if (blocked_.empty() && preempting_.empty()) return head;
  const bool any_suspended =
      std::any_of(input.requests.begin(), input.requests.end(),
                  [](const auto& request) { return request.phase == RequestPhase::kSuspended; });
  for (const RequestDescription& request : input.requests) {
    if (!WaitsForMemory(request)) continue;
    if (request.arena_is_full && any_suspended) continue;
    if (preempting_.Contains(request, input.now)) return &request;
    const auto found = blocked_.find(request.id);
    if (found == blocked_.end() || found->second.since > input.now - kPatience) continue;
    // A suspended request was admitted before: its age counts, not the time of its suspension.
    const bool is_suspended = request.phase == RequestPhase::kSuspended;
    const double begun =
        is_suspended ? std::min(request.arrival, found->second.since) : found->second.since;
    if (begun > since) continue;
    since = begun;
    head = &request;
  }
  return head;
}

const RequestDescription* BlockedRequests::HeadOfLineForArena(const SchedulerInput& input) const {
  const RequestDescription* head = nullptr;
  double since = input.now - kPatience;
  if (blocked_.empty()) return head;
  for (const RequestDescription& request : input.requests) {
    const auto found = blocked_.find(request.id);
    if (found == blocked_.end() || !found->second.lacks_extents) continue;
    if (found->second.since > since) continue;
    since = found->second.since;
    head = &request;
  }
  return head;
}

bool BlockedRequests::WasHeadOfLine(const RequestDescription& request) const {
  const auto found = blocked_.find(request.id);
  return found != blocked_.end() && found->second.holders.has_value();
}

size_t BlockedRequests::ReserveFor(const RequestDescription& head, MemoryBank& bank) const {
  const auto found = blocked_.find(head.id);
  const bool is_known = found != blocked_.end() && found->second.holders.has_value();
  // A preempting request may be the head of line without having been blocked: any request's end
  // will do.
  return bank.ReserveFor(
      head,
      [&](uint64_t id) {
        return !is_known ||
               std::binary_search(found->second.holders->begin(), found->second.holders->end(), id);
      },
      head.arena_is_full);
}

bool BlockedRequests::MayOvertake(const RequestDescription& request, const RequestDescription& head,
                                  double now) const {
  const auto blocked = blocked_.find(head.id);
  if (blocked == blocked_.end() || head.priority <= request.priority) return false;
  const double levels = static_cast<double>(head.priority) - request.priority;
  return now - blocked->second.since < kPatience + PriorityLevels::kLevelSeconds * levels;
}

}  // namespace retroinfer
