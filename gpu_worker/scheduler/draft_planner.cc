#include "gpu_worker/scheduler/draft_planner.h"

#include <algorithm>
#include <vector>

namespace retroinfer {
namespace {

struct Candidate {
  const RequestDescription* request = nullptr;
  int64_t rows = 0;   // planned
  double chance = 0;  // that the next row is right: a token more
};

bool IsLess(const Candidate& a, const Candidate& b) { return a.chance < b.chance; }

// Of requests that have one row of the step: those with drafts.
std::vector<Candidate> CandidatesOf(const SchedulerInput& input, const StepPlan& plan) {
  std::vector<Candidate> candidates;
  for (const RequestDescription& request : input.requests) {
    if (request.measures_given || request.more_rows <= 0 || request.draft_chance <= 0) continue;
    const auto found = std::find(plan.decode.begin(), plan.decode.end(), request.id);
    if (found == plan.decode.end()) continue;
    candidates.push_back({.request = &request, .chance = request.draft_chance});
  }
  return candidates;
}

}  // namespace

// One that decodes alone waits at most for twice its step. Others must not wait for a request whose
// drafts are right: the more of them there are, the less a step may be lengthened beyond the
// target.
double DraftPlanner::LimitOf(const StepPlan& plan, double others) const {
  const double step = times_.costs().Seconds(plan.step);
  const double longer = step * (1 + 1 / static_cast<double>(plan.decode.size()));
  return std::max(options_.inter_token_target, others + longer);
}

void DraftPlanner::Plan(const SchedulerInput& input, StepPlan& plan) {
  std::vector<Candidate> candidates = CandidatesOf(input, plan);
  if (candidates.empty()) return;
  double others = times_.SecondsToMeasure(plan);
  for (const StepPlan::Pass& pass : plan.passes) others += times_.costs().Seconds(pass.work);
  const double limit = LimitOf(plan, others);
  double seconds = others + times_.costs().Seconds(plan.step);
  double tokens = static_cast<double>(plan.decode.size());
  const double without = tokens / seconds;
  Work work = plan.step;
  auto free_rows = options_.max_batch - static_cast<int64_t>(plan.decode.size());
  for (; free_rows > 0; --free_rows) {
    Candidate& best = *std::max_element(candidates.begin(), candidates.end(), IsLess);
    Work more = work;
    more.step_rows += 1;
    more.step_context += static_cast<double>(best.request->context);
    const double with = others + times_.costs().Seconds(more);
    if (best.chance <= 0 || with > limit) break;
    if ((tokens + best.chance) * seconds <= tokens * with) break;
    tokens += best.chance;
    seconds = with;
    work = more;
    best.chance =
        ++best.rows < best.request->more_rows ? best.chance * best.request->draft_chance : 0;
  }
  if (tokens < (1 + kLeastGain) * without * seconds) return;
  plan.step = work;
  for (const Candidate& candidate : candidates) {
    plan.decode.insert(plan.decode.end(), static_cast<size_t>(candidate.rows),
                       candidate.request->id);
    shares_.Charge(candidate.request->tenant, static_cast<double>(candidate.rows));
  }
}

}  // namespace retroinfer
