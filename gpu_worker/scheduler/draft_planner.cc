#include "gpu_worker/scheduler/draft_planner.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <vector>

namespace retroinfer {
namespace {

struct Candidate {
  const RequestDescription* request = nullptr;
  int64_t rows = 0;   // planned
  double chance = 0;  // that the next row is right: a token more
};

// What is expected of a round whose step has so many rows for drafts.
struct Outcome {
  const RequestDescription* request = nullptr;  // whose row was added last
  Work work;                                    // of the step
  double seconds = 0;
  double tokens = 0;

  // Share of tokens a second that it gives more.
  double Gain(const Outcome& other) const {
    return tokens * other.seconds / (other.tokens * seconds) - 1;
  }
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
  const auto free_rows = static_cast<size_t>(options_.max_batch) -
                         std::min<size_t>(options_.max_batch, plan.decode.size());
  std::vector<Outcome> outcomes = {{.work = plan.step,
                                    .seconds = others + times_.costs().Seconds(plan.step),
                                    .tokens = static_cast<double>(plan.decode.size())}};
  while (outcomes.size() <= free_rows) {
    Candidate& best = *std::max_element(candidates.begin(), candidates.end(), IsLess);
    Outcome next = outcomes.back();
    next.request = best.request;
    next.work.step_rows += 1;
    next.work.step_context += static_cast<double>(best.request->context);
    next.seconds = others + times_.costs().Seconds(next.work);
    next.tokens += best.chance;
    if (best.chance <= 0 || next.seconds > limit || next.Gain(outcomes.back()) <= 0) break;
    outcomes.push_back(next);
    best.chance =
        ++best.rows < best.request->more_rows ? best.chance * best.request->draft_chance : 0;
  }
  size_t rows = outcomes.size() - 1;
  if (rows < free_rows) rows = std::bit_floor(rows);
  const Outcome& chosen = outcomes[rows];
  if (chosen.Gain(outcomes.front()) < kLeastGain) return;
  plan.step = chosen.work;
  for (size_t i = 1; i <= rows; ++i) {
    plan.decode.push_back(outcomes[i].request->id);
    shares_.Charge(outcomes[i].request->tenant, 1);
  }
}

}  // namespace retroinfer
