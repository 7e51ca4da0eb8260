#include "gpu_worker/scheduler/measure_planner.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "gpu_worker/scheduler/step_row_work.h"

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

bool MeasurePlanner::AddRow(const RequestDescription& request, double used, double limit,
                            StepPlan& plan) {
  if (std::ssize(plan.decode) >= options_.max_batch) return false;
  Work work = plan.step;
  work += WorkOfStepRow(request);
  if (used + times_.costs().Seconds(work) > limit) return false;
  plan.step = work;
  plan.decode.push_back(request.id);
  shares_.Charge(request.tenant, 1);
  return true;
}

// The target between two tokens is a promise to clients that read an answer. Where none does, a
// device whose step of one row takes longer than the target (a CPU) would pay a whole step for each
// token, although most of a step's time does not depend on its rows.
void MeasurePlanner::PlanMoreRows(const SchedulerInput& input, StepPlan& plan) {
  std::vector<MoreRows> scored;
  bool generates = false;
  Work one_each{.steps = 1};
  for (const RequestDescription& request : input.requests) {
    if (request.phase < RequestPhase::kReading) continue;
    const auto found = std::find(plan.decode.begin(), plan.decode.end(), request.id);
    if (found == plan.decode.end()) continue;
    one_each += WorkOfStepRow(request);
    generates |= !request.measures_given;
    if (request.more_rows == 0 || request.draft_chance != 0 || FeedsTail(request)) continue;
    scored.push_back({&request, request.more_rows});
  }
  if (scored.empty()) return;
  const double used = times_.SecondsBesideStep(plan);
  double limit = options_.inter_token_target;
  if (!generates) {
    const double longer = TimeEstimates::kMostOfGiven * times_.costs().Seconds(one_each);
    limit = std::max(limit, used + longer);
  }
  for (size_t i = 0; !scored.empty();) {
    MoreRows& next = scored[i %= scored.size()];
    if (!AddRow(*next.request, used, limit, plan)) return;
    if (--next.left > 0) {
      ++i;
    } else {
      scored.erase(scored.begin() + static_cast<ptrdiff_t>(i));
    }
  }
}

}  // namespace retroinfer
