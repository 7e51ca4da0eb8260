#include "gpu_worker/scheduler/block_growth.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "gpu_worker/scheduler/blocked_requests.h"
#include "gpu_worker/scheduler/request_predicates.h"

namespace retroinfer {

bool BlockGrowth::GrowsLater(const RequestDescription& one, const RequestDescription& other,
                             double now) const {
  const auto turn = [&](const RequestDescription& request) {
    return std::make_tuple(!preempting_.Contains(request, now), request.priority,
                           request.decoding_since, request.id);
  };
  return turn(one) > turn(other);
}

void BlockGrowth::Plan(const SchedulerInput& input, MemoryBank& bank, StepPlan& plan) {
  std::vector<const RequestDescription*> asking;
  for (const RequestDescription& request : input.requests) {
    const bool asks = request.phase == RequestPhase::kDecoding &&
                      request.asked_dense_blocks + request.asked_meta_blocks > 0;
    const bool leaves =
        std::find(plan.suspend.begin(), plan.suspend.end(), request.id) != plan.suspend.end();
    if (asks && !leaves) asking.push_back(&request);
  }
  std::sort(asking.begin(), asking.end(), [&](const auto* one, const auto* other) {
    return GrowsLater(*other, *one, input.now);
  });
  const RequestDescription* const preempting = preempting_.FindWaiting(input);
  bool is_reserved = false;
  absl::flat_hash_map<uint64_t, Stall> stalled;
  for (const RequestDescription* const one : asking) {
    // Blocks of preempted requests are for the request that they were preempted for. Without this,
    // a request of their own class would take the blocks by growing.
    if (!is_reserved && preempting != nullptr && preempting_.MayBePreempted(*one, *preempting) &&
        bank.MayBegin(*preempting)) {
      bank.Begin(*preempting);
      is_reserved = true;
    }
    if (bank.MayGrow(*one)) {
      bank.Grow(*one);
      plan.grow.push_back(one->id);
    } else if (IsStalled(*one)) {
      stalled[one->id] = {.since = StalledSince(*one).value_or(input.now),
                          .priority = one->priority,
                          .lacks_dense = one->asked_dense_blocks > 0,
                          .lacks_meta = one->asked_meta_blocks > 0};
    }
  }
  if (is_reserved) bank.End(preempting->id);
  stalled_ = std::move(stalled);
}

std::optional<double> BlockGrowth::StalledSince(const RequestDescription& request) const {
  const auto found = stalled_.find(request.id);
  if (found == stalled_.end()) return std::nullopt;
  return found->second.since;
}

bool BlockGrowth::IsBehindStalled(const RequestDescription& request, double now) const {
  if (preempting_.Contains(request, now)) return false;
  const bool takes_dense = request.dense_blocks + request.more_dense_blocks > 0;
  const bool takes_meta = request.meta_blocks + request.more_meta_blocks > 0;
  return std::any_of(stalled_.begin(), stalled_.end(), [&](const auto& entry) {
    const Stall& stall = entry.second;
    const bool takes_it = (stall.lacks_dense && takes_dense) || (stall.lacks_meta && takes_meta);
    return takes_it && now - stall.since >= BlockedRequests::kPatience &&
           request.priority >= stall.priority;
  });
}

}  // namespace retroinfer
