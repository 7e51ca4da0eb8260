#include "gpu_worker/scheduler/measure_planner.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace retroinfer {
namespace {

// Upper bound of the batches of rows that are measured between two steps.
constexpr double kMeasuresMax = 1000;

}  // namespace

void MeasurePlanner::Plan(const SchedulerInput& input, StepPlan& plan) {
  std::optional<size_t> best;
  const auto level = [&](const LaneDescription& lane) {
    const LaneDescription::Member& first = lane.members.front();
    return levels_.LevelOf(first.priority, std::max(0.0, input.now - first.arrival));
  };
  for (size_t i = 0; i < input.lanes.size(); ++i) {
    const LaneDescription& lane = input.lanes[i];
    if (lane.rows_to_measure == 0 || lane.members.empty()) continue;
    // Of lanes of one level the shorter goes first, which is the last.
    if (!best.has_value() || level(lane) <= level(input.lanes[*best])) best = i;
  }
  if (!best.has_value()) return;
  const LaneDescription& lane = input.lanes[*best];
  const double step = times_.costs().Seconds(plan.step);
  const double budget = plan.decode.empty()
                            ? options_.inter_token_target
                            : TimeEstimates::SecondsForPrompts(options_.inter_token_target, step);
  const double batch =
      times_.costs().Seconds({.measured_rows = static_cast<double>(options_.max_batch)});
  const double batches = std::clamp(options_.ahead.all * budget / batch, 1.0, kMeasuresMax);
  plan.measure.push_back(
      {.lane = *best,
       .num_rows =
           std::min(lane.rows_to_measure, options_.max_batch * static_cast<int64_t>(batches))});
  shares_.Charge(lane.members.front().tenant, static_cast<double>(plan.measure.back().num_rows));
}

// Fills the step's free rows with further tokens of given continuations, one for each request in
// turn. The target between two tokens is a promise to clients that read an answer. Where none does,
// a device whose step of one row takes longer than the target (a CPU) would pay a whole step for
// each token, although most of a step's time does not depend on its rows.
void MeasurePlanner::PlanMoreRows(const SchedulerInput& input, StepPlan& plan) {
  std::vector<std::pair<const RequestDescription*, int64_t>> left;
  bool generates = false;
  for (const RequestDescription& request : input.requests) {
    const auto found = std::find(plan.decode.begin(), plan.decode.end(), request.id);
    if (found == plan.decode.end()) continue;
    generates |= !request.measures_given;
    if (request.more_rows > 0 && request.draft_chance == 0)
      left.emplace_back(&request, request.more_rows);
  }
  double used = times_.SecondsToMeasure(plan);
  for (const StepPlan::Pass& pass : plan.passes) used += times_.costs().Seconds(pass.work);
  double limit = options_.inter_token_target;
  if (!generates)
    limit = std::max(limit, used + kMostOfScoring * times_.costs().Seconds(plan.step));
  for (size_t i = 0; !left.empty() && std::ssize(plan.decode) < options_.max_batch;) {
    auto& [request, more] = left[i %= left.size()];
    Work work = plan.step;
    work.step_rows += 1;
    work.step_context += static_cast<double>(request->context);
    if (used + times_.costs().Seconds(work) > limit) return;
    plan.step = work;
    plan.decode.push_back(request->id);
    shares_.Charge(request->tenant, 1);
    if (--more > 0) {
      ++i;
    } else {
      left.erase(left.begin() + static_cast<ptrdiff_t>(i));
    }
  }
}

}  // namespace retroinfer
