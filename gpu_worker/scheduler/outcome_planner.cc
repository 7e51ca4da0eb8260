#include "gpu_worker/scheduler/outcome_planner.h"

#include <limits>

namespace retroinfer {
namespace {

// Share of the expected seconds that a prompt certainly takes. Costs of a busy machine vary, and a
// request that could still meet its deadline must not be refused.
constexpr double kCertain = 0.7;

}  // namespace

std::optional<StepPlan::Ending> OutcomePlanner::EndingOf(const SchedulerInput& input,
                                                         const RequestDescription& request) const {
  using Reason = StepPlan::EndReason;
  const auto ending = [&](Reason reason) { return StepPlan::Ending{request.id, reason}; };
  if (request.has_failed) return ending(Reason::kFailed);
  if (input.aborts_all) return ending(Reason::kAborted);
  // What aborts a call is often its own deadline.
  if (input.now >= request.deadline) return ending(Reason::kLate);
  if (request.is_aborted) return ending(Reason::kAborted);
  // While others hold extents, the arena will not be full for ever: their requests end. The store
  // grants whatever fits beside the extents in use. So if no other request has held extents since
  // this one asked, a disk that has stopped holds the pages, and the wait would not end.
  if (request.answer == StoreAnswer::kArenaFull && !request.arena_may_free_pages) {
    return ending(Reason::kArenaFull);
  }
  // The deadline is checked before anything is done for the request, and again when its cached
  // tokens are known.
  const bool is_granted =
      request.phase == RequestPhase::kReserving && request.answer == StoreAnswer::kGranted;
  if (!request.is_new && !is_granted) return std::nullopt;
  const double seconds = LeastSecondsToFirst(input, request);
  if (seconds <= request.deadline - input.now) return std::nullopt;
  return StepPlan::Ending{request.id, Reason::kUnreachable, seconds};
}

double OutcomePlanner::LeastSecondsToFirst(const SchedulerInput& input,
                                           const RequestDescription& request) const {
  const bool has_deadline = request.deadline < std::numeric_limits<double>::infinity();
  if (!has_deadline || !times_.costs().knows_speed()) return 0;
  RequestDescription at_best = request;
  if (request.is_new) at_best.cached_tokens = request.nameable_tokens;
  return kCertain * times_.EarliestFirstToken(input, at_best);
}

void OutcomePlanner::Plan(const SchedulerInput& input, StepPlan& plan) const {
  for (const RequestDescription& request : input.requests) {
    if (const auto ending = EndingOf(input, request); ending.has_value()) {
      plan.end.push_back(*ending);
      continue;
    }
    switch (request.phase) {
      case RequestPhase::kReserving:
        if (request.answer == StoreAnswer::kGranted) plan.grant.push_back(request.id);
        if (request.answer == StoreAnswer::kArenaFull) plan.put_back.push_back(request.id);
        break;
      case RequestPhase::kSettling:
        if (request.is_settled) plan.finish.push_back(request.id);
        break;
      case RequestPhase::kLeaving:
        if (request.is_copied) plan.leave.push_back(request.id);
        break;
      case RequestPhase::kReturning:
        if (request.is_copied) plan.rejoin.push_back(request.id);
        break;
      default:
        break;
    }
  }
}

}  // namespace retroinfer
