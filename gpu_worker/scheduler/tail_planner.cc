#include "gpu_worker/scheduler/tail_planner.h"

#include <algorithm>
#include <limits>

#include "gpu_worker/scheduler/step_row_work.h"

namespace retroinfer {

TailPlanner::Tail TailPlanner::Describe(const SchedulerInput& input,
                                        const RequestDescription& request) const {
  const double waited = std::max(0.0, input.now - request.arrival);
  return {.request = &request,
          .level = levels_.LevelOf(request.priority, waited),
          .served = shares_.Served(request.tenant),
          .score = times_.SecondsOfTail(request) - PriorityLevels::kAgeing * waited,
          .left = 1 + request.more_rows};
}

bool TailPlanner::IsBefore(const Tail& a, const Tail& b) {
  if (a.level != b.level) return a.level < b.level;
  if (a.served != b.served) return a.served < b.served;
  if (a.score != b.score) return a.score < b.score;
  return a.request->id < b.request->id;
}

int64_t TailPlanner::NextRun(const Tail& tail) {
  return std::min(tail.left, tail.request->rows_of_run);
}

bool TailPlanner::AddRun(double limit, Tail& tail, StepPlan& plan) {
  const int64_t rows = NextRun(tail);
  const int64_t most = int64_t{options_.max_batch} + options_.more_tail_rows;
  if (rows <= 0 || std::ssize(plan.decode) + rows > most) return false;
  const RequestDescription& request = *tail.request;
  Work work = plan.step;
  for (int64_t i = 0; i < rows; ++i) work += WorkOfStepRow(request);
  work.steps = 1;
  if (times_.costs().Seconds(work) > limit) return false;
  plan.step = work;
  plan.decode.insert(plan.decode.end(), static_cast<size_t>(rows), request.id);
  if (request.goes_live && !tail.has_row()) plan.go_live.push_back(request.id);
  tail.left -= rows;
  shares_.Charge(request.tenant, static_cast<double>(rows));
  return true;
}

void TailPlanner::AddRows(double limit, StepPlan& plan) {
  for (Tail& tail : tails_) {
    while (AddRun(limit, tail, plan)) {
    }
  }
}

void TailPlanner::Plan(const SchedulerInput& input,
                       const std::vector<const RequestDescription*>& tails, bool generates,
                       StepPlan& plan) {
  tails_.clear();
  generates_ = generates;
  if (tails.empty()) return;
  Work least = plan.step;
  least.steps = 1;
  for (const RequestDescription* const tail : tails) {
    tails_.push_back(Describe(input, *tail));
    if (generates) continue;
    for (int64_t i = NextRun(tails_.back()); i > 0; --i) least += WorkOfStepRow(*tail);
  }
  std::sort(tails_.begin(), tails_.end(), IsBefore);
  least_ = times_.costs().Seconds(least);
  AddRun(std::numeric_limits<double>::infinity(), tails_.front(), plan);
  AddRows(least_ + kShareOfPrompts * SecondsForPrompts(), plan);
}

// Where nobody reads an answer, a device whose step of one row takes longer than the target (a CPU)
// would pay a whole step for each token, although most of a step's time does not depend on its
// rows.
void TailPlanner::PlanMore(StepPlan& plan) {
  if (tails_.empty()) return;
  const double others = times_.SecondsBesideStep(plan);
  double limit = least_ + SecondsForPrompts() - others;
  if (!generates_) limit = std::max(limit, TimeEstimates::kMostOfGiven * least_);
  AddRows(limit, plan);
}

}  // namespace retroinfer
