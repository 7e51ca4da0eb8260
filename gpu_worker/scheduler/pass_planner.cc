#include "gpu_worker/scheduler/pass_planner.h"

#include <algorithm>
#include <cmath>

#include "gpu_worker/scheduler/lane_rows.h"

namespace retroinfer {
namespace {

// The rows of a pass that is cut are a multiple of this, and at least as many.
constexpr int64_t kRowGrain = 64;
// A pass that is cut to the time left has at least 1 / kLeastOfRows of the largest pass's rows:
// products of few rows cost nearly as much as products of many.
constexpr int64_t kLeastOfRows = 4;
// Difference of two tenants' service (tokens over weight) from which on it decides between lanes.
// With less, lanes would alternate at each pass.
constexpr double kShareSlack = 2048;

// Whether the background builds segments of prompts now: it has not taken over the layer that was
// computed last.
bool IsClustering(const SchedulerInput& input, uint32_t num_layers) {
  return std::any_of(input.lanes.begin(), input.lanes.end(), [&](const LaneDescription& lane) {
    return !lane.is_free && lane.layer > 0 && lane.layer < num_layers &&
           lane.layers_open <= lane.layer + 1;
  });
}

bool HasRows(const LaneDescription& lane, uint32_t num_layers) {
  return !lane.members.empty() && lane.layer < std::min(lane.layers_open, num_layers);
}

}  // namespace

// The lane whose group goes on: groups are ordered like waiting requests (RequestOrder), by their
// first member.
std::optional<size_t> PassPlanner::NextLane(double now,
                                            const std::vector<LaneDescription>& lanes) const {
  struct Claim {
    int64_t level = 0;
    double served = 0;
    double score = 0;  // seconds
  };
  const auto is_before = [](const Claim& a, const Claim& b) {
    if (a.level != b.level) return a.level < b.level;
    if (std::abs(a.served - b.served) > kShareSlack) return a.served < b.served;
    return a.score < b.score;
  };
  std::optional<size_t> best;
  Claim best_claim;
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (!HasRows(lanes[i], options_.num_layers)) continue;
    const LaneDescription::Member& first = lanes[i].members.front();
    const double waited = std::max(0.0, now - first.arrival);
    const Claim claim = {.level = levels_.LevelOf(first.priority, waited),
                         .served = shares_.Served(first.tenant),
                         .score = times_.SecondsLeft(lanes[i]) - PriorityLevels::kAgeing * waited};
    if (best.has_value() && !is_before(claim, best_claim)) continue;
    best = i;
    best_claim = claim;
  }
  return best;
}

// The next rows of the lane: as many as take `limit` seconds at most, but kRowGrain at least.
StepPlan::Pass PassPlanner::PassOf(const LaneDescription& lane, size_t index, double limit,
                                   bool is_clustering) const {
  const int64_t left = GroupRows(lane) - lane.next_row;
  StepPlan::Pass pass{
      .lane = index, .layer = lane.layer, .first_row = lane.next_row, .num_rows = 0, .work = {}};
  int64_t rows = std::min(left, options_.max_rows);
  while (true) {
    pass.num_rows = WholeUnits(lane, rows);
    pass.work = WorkOfRows(lane, lane.next_row, pass.num_rows);
    const double seconds = times_.SecondsBeside(is_clustering, pass.work);
    if (seconds <= limit || rows <= kRowGrain) return pass;
    const auto fitting = static_cast<int64_t>(static_cast<double>(rows) * limit / seconds);
    rows = std::max(kRowGrain, std::min(rows - 1, fitting) / kRowGrain * kRowGrain);
  }
}

void PassPlanner::Plan(const SchedulerInput& input, std::vector<LaneDescription>& lanes,
                       StepPlan& plan) {
  const double target = options_.inter_token_target;
  const bool is_clustering = IsClustering(input, options_.num_layers);
  const double step =
      times_.SecondsBeside(is_clustering, plan.step) + times_.SecondsToMeasure(plan);
  const bool decodes = !plan.decode.empty();
  const double budget = (decodes ? TimeEstimates::SecondsForPrompts(times_.SecondsOfRound(), step)
                                 : options_.ahead.all * target) -
                        input.seconds_in_flight;
  double used = 0;
  lane_seconds_.resize(lanes.size(), 0.0);
  while (std::ssize(plan.passes) < input.free_passes && (used < budget || plan.passes.empty())) {
    if (budget <= 0) break;
    std::optional<size_t> next = NextLane(input.now, lanes);
    if (!next.has_value()) break;
    for (size_t i = 0; i < lanes.size(); ++i) {
      if (!HasRows(lanes[i], options_.num_layers)) {
        std::fill(lane_seconds_.begin(), lane_seconds_.end(), 0.0);
        break;
      }
      const double both = lane_seconds_[i] + lane_seconds_[*next];
      // A long prompt goes on beside any stream of short ones.
      if (i != *next && both > target && lane_seconds_[i] < kLeastShare * both) next = i;
    }
    LaneDescription& lane = lanes[*next];
    const double limit = decodes ? budget - used : options_.ahead.pass * target;
    const StepPlan::Pass pass = PassOf(lane, *next, limit, is_clustering);
    const double seconds = times_.costs().Seconds(pass.work);
    // The first pass may exceed the budget: otherwise prompts would not go on beside long steps.
    if (decodes && !plan.passes.empty()) {
      const int64_t whole = std::min(options_.max_rows, GroupRows(lane) - lane.next_row);
      if (used + seconds > budget ||
          pass.num_rows < std::min(whole, options_.max_rows / kLeastOfRows)) {
        break;
      }
    }
    used += seconds;
    lane_seconds_[*next] += seconds;
    Charge(lane, pass);
    plan.passes.push_back(pass);
    lane.next_row += pass.num_rows;
    if (lane.next_row == GroupRows(lane)) {
      lane.next_row = 0;
      if (++lane.layer == options_.num_layers) PlanFirstStep(lane, plan);
    }
  }
}

// Members whose prompts these passes finish take part in the step that follows.
void PassPlanner::PlanFirstStep(const LaneDescription& lane, StepPlan& plan) {
  for (const LaneDescription::Member& member : lane.members) {
    if (!member.takes_in_order || member.has_more_parts) continue;
    plan.finish.push_back(member.id);
    if (member.given_tokens > 0) continue;  // the next plan gives it as many rows as there are
    if (std::ssize(plan.decode) >= options_.max_batch) continue;
    plan.decode.push_back(member.id);
    plan.step.steps = 1;
    plan.step.step_rows += 1;
    plan.step.step_context += static_cast<double>(member.rows + member.cached_tokens);
    shares_.Charge(member.tenant, 1);
  }
}

void PassPlanner::Charge(const LaneDescription& lane, const StepPlan::Pass& pass) {
  int64_t begin = 0;
  for (const LaneDescription::Run& run : lane.runs.empty() ? RunsOf(lane.members) : lane.runs) {
    const int64_t first = std::max(pass.first_row, begin);
    const int64_t last = std::min(pass.first_row + pass.num_rows, begin + run.rows);
    if (first < last) {
      shares_.Charge(run.tenant, static_cast<double>(last - first) / options_.num_layers);
    }
    begin += run.rows;
  }
}

}  // namespace retroinfer
