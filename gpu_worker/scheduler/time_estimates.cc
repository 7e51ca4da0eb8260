#include "gpu_worker/scheduler/time_estimates.h"

#include <algorithm>

#include "gpu_worker/scheduler/lane_rows.h"
#include "gpu_worker/scheduler/step_row_work.h"

namespace retroinfer {
namespace {

// Where steps alone take all of the target, prompts still get this share of a step's time.
constexpr double kLeastOfStep = 0.25;
// Nearly every round takes at most this many times the target.
constexpr double kTolerance = 1.2;

}  // namespace

double TimeEstimates::SecondsToRead(const RequestDescription& request) const {
  LaneDescription::Member member = MemberOf(request);
  member.rows += request.later_tokens;
  Work work = WorkAlone(member, options_.num_layers, options_.max_rows);
  if (request.given_tokens == 0) return costs_.Seconds(work);
  // At best each of its steps has no rows but these.
  const int64_t most = options_.max_batch;
  work.steps += static_cast<double>((request.given_tokens + most - 1) / most);
  const auto given = static_cast<double>(request.given_tokens);
  work.tail_rows += given;
  work.tail_context += given * static_cast<double>(request.given_depth);
  return costs_.Seconds(work);
}

double TimeEstimates::SecondsOfTail(const RequestDescription& request) const {
  Work work = WorkOfStepRow(request);
  const auto given = static_cast<double>(request.given_tokens);
  work.tail_rows *= given;
  work.tail_context *= given;
  work.cold_context *= std::min(given, 1 + static_cast<double>(request.more_rows));
  return costs_.Seconds(work);
}

double TimeEstimates::SecondsOfRound() const {
  return options_.inter_token_target * std::min(1.0, kTolerance / costs_.margin());
}

double TimeEstimates::SecondsLeft(const LaneDescription& lane) const {
  if (lane.members.empty() || lane.layer >= options_.num_layers) return 0;
  return costs_.Seconds(WorkLeft(lane, options_.num_layers, options_.max_rows));
}

double TimeEstimates::SecondsBeside(bool is_clustering, Work& work) const {
  work.seconds_beside_clustering = 0;
  if (is_clustering) work.seconds_beside_clustering = costs_.Seconds(work);
  return costs_.Seconds(work);
}

double TimeEstimates::SecondsBesideStep(const StepPlan& plan) const {
  double seconds = SecondsToMeasure(plan);
  for (const StepPlan::Pass& pass : plan.passes) seconds += costs_.Seconds(pass.work);
  return seconds;
}

double TimeEstimates::SecondsToMeasure(const StepPlan& plan) const {
  double rows = 0;
  for (const StepPlan::Measure& measure : plan.measure) {
    rows += static_cast<double>(measure.num_rows);
  }
  return costs_.Seconds({.measured_rows = rows});
}

double TimeEstimates::SecondsForPrompts(double target, double step) {
  return std::max(target - step, kLeastOfStep * step);
}

double TimeEstimates::EarliestFirstToken(const SchedulerInput& input,
                                         const RequestDescription& request) const {
  const double own = SecondsToRead(request);
  double first = own;
  for (const RequestDescription& other : input.requests) {
    const bool waits = other.phase == RequestPhase::kWaiting || other.phase == RequestPhase::kReady;
    if (!waits || other.id == request.id || other.tenant != request.tenant) continue;
    if (other.priority > request.priority || other.arrival > request.arrival) continue;
    // Of one tenant and class, only a shorter prompt that came earlier is certain to be first.
    if (const double seconds = SecondsToRead(other); seconds <= own) first += seconds;
  }
  return first;
}

}  // namespace retroinfer
