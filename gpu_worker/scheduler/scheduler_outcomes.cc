// What has come of what was begun: who ends, whose prompt is done with, whose store has answered,
// whose copies are done. Planned before all else, which depends on it.
#include <limits>

#include "gpu_worker/scheduler/scheduler.h"

namespace retroinfer {
namespace {

// Of what a prompt is expected to take: costs of a busy machine vary, and nobody who could have
// made it is to be refused.
constexpr double kCertain = 0.7;

}  // namespace

void Scheduler::LearnCosts(const SchedulerInput& input) {
  if (input.forgets_costs) costs_ = CostModel();
  for (const MeasuredWork& measured : input.measured) {
    costs_.Observe(measured.work, measured.seconds);
  }
}

// Why and how the request ends now, if it does.
std::optional<StepPlan::Ending> Scheduler::EndingOf(const SchedulerInput& input,
                                                    const RequestDescription& request) const {
  using Reason = StepPlan::EndReason;
  const auto ending = [&](Reason reason) { return StepPlan::Ending{request.id, reason}; };
  if (request.has_failed) return ending(Reason::kFailed);
  if (input.aborts_all) return ending(Reason::kAborted);
  // What aborts a call is often its own deadline.
  if (input.now >= request.deadline) return ending(Reason::kLate);
  if (request.is_aborted) return ending(Reason::kAborted);
  // It fits, and others end: the arena will not be full for ever. The store grants whatever fits
  // beside what is in use: if nobody else has had any of it since the request asked, a disk that
  // has stopped keeps it.
  if (request.answer == StoreAnswer::kNoRoom && !request.arena_may_get_room) {
    return ending(Reason::kNoRoom);
  }
  // Before anything is done for it, and again when it is known what is cached.
  const bool is_granted =
      request.phase == RequestPhase::kReserving && request.answer == StoreAnswer::kGranted;
  if (!request.is_new && !is_granted) return std::nullopt;
  const double seconds = LeastSecondsToFirst(input, request);
  if (seconds <= request.deadline - input.now) return std::nullopt;
  return StepPlan::Ending{request.id, Reason::kUnreachable, seconds};
}

// Until its first token; 0 if that is not known, or nobody needs to know.
double Scheduler::LeastSecondsToFirst(const SchedulerInput& input,
                                      const RequestDescription& request) const {
  const bool has_deadline = request.deadline < std::numeric_limits<double>::infinity();
  if (!has_deadline || !knows_costs()) return 0;
  RequestDescription at_best = request;
  if (request.is_new) at_best.cached_tokens = request.nameable_tokens;
  return kCertain * EarliestFirstToken(input, at_best);
}

void Scheduler::PlanOutcomes(const SchedulerInput& input, StepPlan& plan) const {
  for (const RequestDescription& request : input.requests) {
    if (const auto ending = EndingOf(input, request); ending.has_value()) {
      plan.end.push_back(*ending);
      continue;
    }
    switch (request.phase) {
      case RequestPhase::kReserving:
        if (request.answer == StoreAnswer::kGranted) plan.grant.push_back(request.id);
        if (request.answer == StoreAnswer::kNoRoom) plan.put_back.push_back(request.id);
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
