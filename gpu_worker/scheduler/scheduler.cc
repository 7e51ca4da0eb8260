#include "gpu_worker/scheduler/scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "gpu_worker/scheduler/lane_rows.h"
#include "gpu_worker/scheduler/request_order.h"

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

// A waiting request moves up, but not above the highest priority there is: among requests of the
// highest level the tenants' shares decide.
int64_t Scheduler::LevelOf(int32_t priority, double waited) const {
  return std::max(priority - static_cast<int64_t>(waited / kLevelSeconds), highest_);
}

double Scheduler::SecondsToRead(const RequestDescription& request) const {
  LaneDescription::Member member = MemberOf(request);
  member.rows += request.later_tokens;
  return costs_.Seconds(WorkAlone(member, options_.num_layers, options_.max_rows));
}

double Scheduler::SecondsLeft(const LaneDescription& lane) const {
  if (lane.members.empty() || lane.layer >= options_.num_layers) return 0;
  return costs_.Seconds(WorkLeft(lane, options_.num_layers, options_.max_rows));
}

StepPlan Scheduler::Plan(const SchedulerInput& input) {
  StepPlan plan;
  highest_ = std::numeric_limits<int32_t>::max();
  for (const RequestDescription& request : input.requests) {
    highest_ = std::min<int64_t>(highest_, request.priority);
  }
  LearnCosts(input);
  UpdateShares(input);
  lengths_.Update(input);
  batch_row_rate_.Update(input, BatchRowsLeft(input) <= 0);
  PlanOutcomes(input, plan);
  const bool any_outcome = !plan.empty();
  plan.let_go = input.unused;
  // All else depends on the outcomes: the caller describes them, and asks for the next plan at
  // once.
  if (any_outcome) return plan;
  PlanSuspensions(input, plan);
  MemoryBank bank(input, lengths_);
  for (const uint64_t id : plan.suspend) bank.Suspend(id);
  PlanGrowth(input, bank, plan);
  PlanDecode(input, plan);
  const bool any_free_lane = std::any_of(input.lanes.begin(), input.lanes.end(),
                                         [](const LaneDescription& lane) { return lane.is_free; });
  const bool may_admit = BatchRowsLeft(input) > 0 || any_free_lane;
  std::vector<LaneDescription> lanes = input.lanes;
  if (may_admit) {
    Order order(*this, input);
    PlanAdmissions(input, bank, order, plan);
    PlanGroups(input, order, lanes, plan);
  }
  PlanMeasures(input, plan);
  PlanPasses(input, lanes, plan);
  PlanMoreRows(input, plan);
  return plan;
}

double Scheduler::ExpectedWait(const SchedulerInput& input) const {
  double work = input.seconds_in_flight;
  double context = 0;
  int64_t rows = 0;
  int64_t without_row = -BatchRowsLeft(input);
  for (const RequestDescription& request : input.requests) {
    without_row += request.phase == RequestPhase::kWaiting ||
                   request.phase == RequestPhase::kReady ||
                   request.phase == RequestPhase::kSuspended;
    if (request.phase >= RequestPhase::kDecoding) {
      ++rows;
      context += static_cast<double>(request.context);
    } else if (request.phase != RequestPhase::kReading &&
               request.phase != RequestPhase::kSettling) {
      work += SecondsToRead(request);
    }
  }
  for (const LaneDescription& lane : input.lanes) work += SecondsLeft(lane);
  if (rows == 0) return work;
  rows = std::min<int64_t>(rows, options_.max_batch);
  const double step =
      costs_.Seconds({.steps = 1, .step_rows = static_cast<double>(rows), .step_context = context});
  const double target = options_.inter_token_target;
  const double left = std::max(target - step, kLeastOfStep * step);
  return std::max(work * (left + step) / left, batch_row_rate_.SecondsUntilFree(without_row));
}

double Scheduler::EarliestFirstToken(const SchedulerInput& input,
                                     const RequestDescription& request) const {
  const double own = SecondsToRead(request);
  double first = own;
  for (const RequestDescription& other : input.requests) {
    const bool waits = other.phase == RequestPhase::kWaiting || other.phase == RequestPhase::kReady;
    if (!waits || other.id == request.id || other.tenant != request.tenant) continue;
    if (other.priority > request.priority || other.arrival > request.arrival) continue;
    if (const double seconds = SecondsToRead(other); seconds <= own) first += seconds;
  }
  return first;
}

void Scheduler::UpdateShares(const SchedulerInput& input) {
  for (const uint32_t tenant : input.new_tenants) shares_.Renew(tenant);
  if (input.weights.size() == 1) {
    constexpr bool kWants[] = {true};
    shares_.Update(input.weights, kWants);
    return;
  }
  const auto wants = std::make_unique<bool[]>(input.weights.size());
  for (const RequestDescription& request : input.requests) wants[request.tenant] = true;
  shares_.Update(input.weights, std::span<const bool>(wants.get(), input.weights.size()));
}

// --- Decoding

// Requests that get a row of the step now: they can decode, and have memory for a token.
std::vector<const RequestDescription*> Scheduler::BatchOf(const SchedulerInput& input,
                                                          const StepPlan& plan) const {
  std::vector<const RequestDescription*> batch;
  for (const RequestDescription& request : input.requests) {
    if (request.phase != RequestPhase::kDecoding || !request.can_decode) continue;
    const auto is_in = [&request](const std::vector<uint64_t>& ids) {
      return std::find(ids.begin(), ids.end(), request.id) != ids.end();
    };
    if (request.free_tokens <= 0 && !is_in(plan.grow)) continue;
    if (!is_in(plan.suspend)) batch.push_back(&request);
  }
  // The oldest requests keep their rows: they end first, and requests do not take turns.
  if (std::ssize(batch) > options_.max_batch) {
    std::stable_sort(batch.begin(), batch.end(), [](const auto* a, const auto* b) {
      return a->decoding_since < b->decoding_since;
    });
    batch.resize(static_cast<size_t>(options_.max_batch));
  }
  return batch;
}

void Scheduler::PlanDecode(const SchedulerInput& input, StepPlan& plan) {
  const std::vector<const RequestDescription*> batch = BatchOf(input, plan);
  for (const RequestDescription* const request : batch) {
    plan.decode.push_back(request->id);
    if (request->goes_live) plan.go_live.push_back(request->id);
    plan.step.step_context += static_cast<double>(request->context);
    shares_.Charge(request->tenant, 1);
  }
  plan.step.step_rows = static_cast<double>(batch.size());
  plan.step.steps = batch.empty() ? 0 : 1;
}

// Rows of the batch that no request decodes in or will within kBatchRowAhead. A stalled request has
// no row: others may have to end before it goes on.
int64_t Scheduler::BatchRowsLeft(const SchedulerInput& input) const {
  int64_t rows = options_.max_batch;
  for (const RequestDescription& request : input.requests) {
    rows -= (request.phase == RequestPhase::kDecoding && request.free_tokens > 0) ||
            request.phase == RequestPhase::kSettling || request.phase == RequestPhase::kReturning;
  }
  for (const LaneDescription& lane : input.lanes) {
    if (SecondsLeft(lane) < kBatchRowAhead && lane.layer < options_.num_layers) {
      rows -= std::ssize(lane.members);
    }
  }
  return rows;
}

// --- Passes

// The lane whose group goes on: groups are ordered like waiting requests (Order), by their first
// member.
std::optional<size_t> Scheduler::NextLane(double now,
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
    const Claim claim = {.level = LevelOf(first.priority, waited),
                         .served = shares_.Served(first.tenant),
                         .score = SecondsLeft(lanes[i]) - kAgeing * waited};
    if (best.has_value() && !is_before(claim, best_claim)) continue;
    best = i;
    best_claim = claim;
  }
  return best;
}

// Seconds that the work takes; sets work.seconds_beside_clustering.
double Scheduler::SecondsBeside(bool is_clustering, Work& work) const {
  work.seconds_beside_clustering = 0;
  if (is_clustering) work.seconds_beside_clustering = costs_.Seconds(work);
  return costs_.Seconds(work);
}

// The next rows of the lane: as many as take `limit` seconds at most, but kRowGrain at least.
StepPlan::Pass Scheduler::PassOf(const LaneDescription& lane, size_t index, double limit,
                                 bool is_clustering) const {
  const int64_t left = GroupRows(lane) - lane.next_row;
  StepPlan::Pass pass{
      .lane = index, .layer = lane.layer, .first_row = lane.next_row, .num_rows = 0, .work = {}};
  int64_t rows = std::min(left, options_.max_rows);
  while (true) {
    pass.num_rows = rows;
    pass.work = WorkOfRows(lane, lane.next_row, rows);
    const double seconds = SecondsBeside(is_clustering, pass.work);
    if (seconds <= limit || rows <= kRowGrain) return pass;
    const auto fitting = static_cast<int64_t>(static_cast<double>(rows) * limit / seconds);
    rows = std::max(kRowGrain, std::min(rows - 1, fitting) / kRowGrain * kRowGrain);
  }
}

void Scheduler::PlanPasses(const SchedulerInput& input, std::vector<LaneDescription>& lanes,
                           StepPlan& plan) {
  const double target = options_.inter_token_target;
  const bool is_clustering = IsClustering(input, options_.num_layers);
  const double step = SecondsBeside(is_clustering, plan.step) + SecondsToMeasure(plan);
  const bool decodes = !plan.decode.empty();
  const double left = target * std::min(1.0, kTolerance / costs_.margin()) - step;
  const double budget =
      (decodes ? std::max(left, kLeastOfStep * step) : options_.ahead.all * target) -
      input.seconds_in_flight;
  double used = 0;
  lane_seconds_.resize(lanes.size(), 0.0);
  std::optional<size_t> last;
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
    const double seconds = costs_.Seconds(pass.work);
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
void Scheduler::PlanFirstStep(const LaneDescription& lane, StepPlan& plan) {
  for (const LaneDescription::Member& member : lane.members) {
    if (!member.takes_in_order || member.has_more_parts) continue;
    plan.finish.push_back(member.id);
    if (std::ssize(plan.decode) == options_.max_batch) continue;
    plan.decode.push_back(member.id);
    plan.step.steps = 1;
    plan.step.step_rows += 1;
    plan.step.step_context += static_cast<double>(member.rows + member.cached_tokens);
    shares_.Charge(member.tenant, 1);
  }
}

void Scheduler::Charge(const LaneDescription& lane, const StepPlan::Pass& pass) {
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
