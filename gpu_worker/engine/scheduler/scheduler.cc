#include "gpu_worker/engine/scheduler/scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "absl/container/flat_hash_set.h"
#include "gpu_worker/engine/scheduler/lane_rows.h"
#include "gpu_worker/engine/scheduler/request_order.h"

namespace retroinfer {
namespace {

// Rows of a pass are cut to multiples of this, and to no fewer.
constexpr int64_t kRowGrain = 64;
// Of the target: one pass, while nothing decodes.
constexpr double kPassShare = 0.25;
// A pass that is cut to the rest of the time has at least so much of the largest one: products of
// few rows cost nearly as much as those of many.
constexpr int64_t kLeastOfRows = 4;
// Tokens over weight by which tenants may differ before it decides between lanes.
constexpr double kShareSlack = 2048;
// Requests that are looked at in one plan for whether they fit.
constexpr int kMaxTries = 32;
// Whether the background builds segments of prompts now: it has not taken the layer that was
// computed last.
bool IsDisturbed(const SchedulerInput& input, uint32_t num_layers) {
  return std::any_of(input.lanes.begin(), input.lanes.end(), [&](const LaneDescription& lane) {
    return !lane.is_free && lane.layer > 0 && lane.layer < num_layers &&
           lane.layers_open <= lane.layer + 1;
  });
}

bool HasRows(const LaneDescription& lane, uint32_t num_layers) {
  return !lane.members.empty() && lane.layer < std::min(lane.layers_open, num_layers);
}

}  // namespace

// Who waits moves up, but not above those of the highest priority: among equals shares decide.
int64_t Scheduler::LevelOf(int32_t priority, double waited) const {
  return std::max(priority - static_cast<int64_t>(waited / kLevelSeconds), highest_);
}

double Scheduler::SecondsToRead(const RequestDescription& request) const {
  return costs_.Seconds(WorkAlone(MemberOf(request), options_.num_layers, options_.max_rows));
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
  place_rate_.Update(input, PlacesLeft(input) <= 0);
  PlanOutcomes(input, plan);
  const bool any_outcome = plan.concerns_requests();
  plan.let_go = input.unused;
  plan.cache = PlanUpkeep(input.cache);
  // All else is planned at once again, when what they are then and have given back is described.
  if (any_outcome) return plan;
  PlanSuspensions(input, plan);
  PlanDecode(input, plan);
  const bool any_free_lane = std::any_of(input.lanes.begin(), input.lanes.end(),
                                         [](const LaneDescription& lane) { return lane.is_free; });
  const bool may_admit = PlacesLeft(input) > 0 || any_free_lane;
  std::vector<LaneDescription> lanes = input.lanes;
  if (may_admit) {
    Order order(*this, input);
    PlanAdmissions(input, order, plan);
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
  int64_t without_place = -PlacesLeft(input);
  for (const RequestDescription& request : input.requests) {
    without_place += request.phase == RequestPhase::kWaiting ||
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
  return std::max(work * (left + step) / left, place_rate_.SecondsUntilFree(without_place));
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

// Who decodes now.
std::vector<const RequestDescription*> Scheduler::BatchOf(const SchedulerInput& input,
                                                          const StepPlan& plan) const {
  std::vector<const RequestDescription*> batch;
  for (const RequestDescription& request : input.requests) {
    if (request.phase != RequestPhase::kDecoding || !request.can_decode) continue;
    const bool leaves =
        std::find(plan.suspend.begin(), plan.suspend.end(), request.id) != plan.suspend.end();
    if (!leaves) batch.push_back(&request);
  }
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

// Places of the batch that nobody decodes in or is about to.
int64_t Scheduler::PlacesLeft(const SchedulerInput& input) const {
  int64_t places = options_.max_batch;
  for (const RequestDescription& request : input.requests) {
    places -= request.phase == RequestPhase::kDecoding ||
              request.phase == RequestPhase::kSettling || request.phase == RequestPhase::kReturning;
  }
  for (const LaneDescription& lane : input.lanes) {
    if (SecondsLeft(lane) < kPlaceAhead && lane.layer < options_.num_layers) {
      places -= std::ssize(lane.members);
    }
  }
  return places;
}

// --- Admission

// What may still be admitted in this plan.
struct Scheduler::Admission {
  int64_t short_ones, long_ones;  // of prompts of either kind
  int64_t reserving;
  int64_t dense_blocks, meta_blocks, table_rows;

  absl::flat_hash_set<uint64_t> prefixes = {};  // of those that were admitted and are not read yet

  // A long prompt that can be read with another one has a place like a short one.
  bool IsLikeShort(const RequestDescription& request, bool is_short) const {
    return is_short || (request.prefix != 0 && prefixes.contains(request.prefix));
  }
  bool May(const RequestDescription& request, bool is_short) const {
    return (is_short ? short_ones : long_ones) > 0 ||
           (IsLikeShort(request, is_short) && short_ones > 0);
  }
  void Count(const RequestDescription& request, bool is_short) {
    --(IsLikeShort(request, is_short) ? short_ones : long_ones);
    CountPrefix(request);
  }
  void CountPrefix(const RequestDescription& request) {
    if (request.prefix != 0) prefixes.insert(request.prefix);
  }

  bool HasRoomFor(const RequestDescription& request) const {
    return request.dense_blocks <= dense_blocks && request.meta_blocks <= meta_blocks &&
           table_rows > 0 && !request.arena_is_full;
  }
  void Take(const RequestDescription& request) {
    dense_blocks -= request.dense_blocks;
    meta_blocks -= request.meta_blocks;
    --table_rows;
  }
};

// The request that others stepped aside for, or the one that waits for room longest, if it no more
// lets others pass. One that waits for the arena holds no memory against those who have stepped
// aside: they may hold what it waits for.
const RequestDescription* Scheduler::Held(const SchedulerInput& input) const {
  const RequestDescription* held = nullptr;
  double since = std::numeric_limits<double>::infinity();
  if (blocked_since_.empty() && made_room_for_.empty()) return held;
  const bool any_aside =
      std::any_of(input.requests.begin(), input.requests.end(),
                  [](const auto& request) { return request.phase == RequestPhase::kSuspended; });
  for (const RequestDescription& request : input.requests) {
    if (request.phase != RequestPhase::kWaiting && request.phase != RequestPhase::kSuspended) {
      continue;
    }
    if (request.arena_is_full && any_aside) continue;
    if (HasRoomMade(request, input.now)) return &request;
    const auto found = blocked_since_.find(request.id);
    if (found == blocked_since_.end() || found->second > input.now - kPatience) continue;
    // Who has stepped aside has waited before.
    const bool is_aside = request.phase == RequestPhase::kSuspended;
    const double begun = is_aside ? std::min(request.arrival, found->second) : found->second;
    if (begun > since) continue;
    since = begun;
    held = &request;
  }
  return held;
}

// The one that waits longest for room in the arena, which is kept for it.
const RequestDescription* Scheduler::HeldForArena(const SchedulerInput& input) const {
  const RequestDescription* held = nullptr;
  double since = input.now - kPatience;
  if (blocked_since_.empty()) return held;
  for (const RequestDescription& request : input.requests) {
    if (request.phase != RequestPhase::kWaiting || !request.arena_is_full) continue;
    const auto found = blocked_since_.find(request.id);
    if (found == blocked_since_.end() || found->second > since) continue;
    since = found->second;
    held = &request;
  }
  return held;
}

void Scheduler::PlanAdmissions(const SchedulerInput& input, Order& order, StepPlan& plan) {
  Admission left{.short_ones = PlacesLeft(input),
                 .long_ones = 1,
                 .reserving = options_.max_batch,
                 .dense_blocks = input.free_dense_blocks,
                 .meta_blocks = input.free_meta_blocks,
                 .table_rows = input.free_table_rows};
  for (const LaneDescription& lane : input.lanes) left.long_ones += lane.is_free ? 1 : 0;
  for (const RequestDescription& request : input.requests) {
    if (request.phase == RequestPhase::kReserving) --left.reserving;
    if (request.phase == RequestPhase::kReserving) left.CountPrefix(request);
    if (request.phase == RequestPhase::kReady) left.Count(request, IsShort(input, request));
  }
  const RequestDescription* held = Held(input);
  const RequestDescription* const arena_held = HeldForArena(input);
  std::vector<const RequestDescription*> ready;
  const auto may_admit = [&](const RequestDescription& request) {
    if (request.phase == RequestPhase::kSuspended) return left.short_ones > 0;
    return request.phase == RequestPhase::kWaiting && left.May(request, IsShort(input, request));
  };
  for (int tries = 0; tries < kMaxTries && left.reserving > 0; ++tries) {
    const bool is_held = tries == 0 && held != nullptr;
    const RequestDescription* const request = order.Next([&](const RequestDescription& one) {
      return may_admit(one) && (!is_held || &one == held);
    });
    if (request == nullptr && is_held) continue;
    if (request == nullptr) break;
    const bool is_aside = request->phase == RequestPhase::kSuspended;  // it has its extents
    const bool arena_is_kept = arena_held != nullptr && request->wants_extents && !is_aside;
    if (!left.HasRoomFor(*request) || (arena_is_kept && !is_held)) {
      blocked_since_.try_emplace(request->id, input.now);
      if (is_held) left.Take(*request);  // what others must leave
      continue;
    }
    if (is_held) held = nullptr;
    left.Take(*request);
    blocked_since_.erase(request->id);
    if (is_aside) {
      --left.short_ones;
      plan.resume.push_back(request->id);
      continue;
    }
    left.Count(*request, IsShort(input, *request));
    plan.admit.push_back(request->id);
    if (request->asks_store) {
      --left.reserving;
      plan.ask.push_back(request->id);
    }
    order.Charge(*request);
    // Without a question to the store it can be read at once.
    if (!request->asks_store) ready.push_back(request);
  }
  for (const RequestDescription* const request : ready) order.PutBack(*request, *this);
  if (blocked_since_.size() > input.requests.size()) {
    absl::flat_hash_set<uint64_t> known;
    for (const RequestDescription& request : input.requests) known.insert(request.id);
    absl::erase_if(blocked_since_, [&](const auto& entry) { return !known.contains(entry.first); });
  }
}

// --- Passes

// The lane whose group goes on: as Order has it of the group's first member.
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

// What the work takes, which learns whether it is disturbed.
double Scheduler::SecondsBeside(bool is_disturbed, Work& work) const {
  work.disturbed = 0;
  if (is_disturbed) work.disturbed = costs_.Seconds(work);
  return costs_.Seconds(work);
}

// The next rows of the lane, as many as take `limit` seconds at most, or else the fewest.
StepPlan::Pass Scheduler::PassOf(const LaneDescription& lane, size_t index, double limit,
                                 bool is_disturbed) const {
  const int64_t left = GroupRows(lane) - lane.next_row;
  StepPlan::Pass pass{
      .lane = index, .layer = lane.layer, .first_row = lane.next_row, .num_rows = 0, .work = {}};
  int64_t rows = std::min(left, options_.max_rows);
  while (true) {
    pass.num_rows = rows;
    pass.work = WorkOfRows(lane, lane.next_row, rows);
    const double seconds = SecondsBeside(is_disturbed, pass.work);
    if (seconds <= limit || rows <= kRowGrain) return pass;
    const auto fitting = static_cast<int64_t>(static_cast<double>(rows) * limit / seconds);
    rows = std::max(kRowGrain, std::min(rows - 1, fitting) / kRowGrain * kRowGrain);
  }
}

void Scheduler::PlanPasses(const SchedulerInput& input, std::vector<LaneDescription>& lanes,
                           StepPlan& plan) {
  const double target = options_.inter_token_target;
  const bool is_disturbed = IsDisturbed(input, options_.num_layers);
  const double step = SecondsBeside(is_disturbed, plan.step) + SecondsToMeasure(plan);
  const bool decodes = !plan.decode.empty();
  const double left = target * std::min(1.0, kTolerance / costs_.margin()) - step;
  const double budget = (decodes ? std::max(left, kLeastOfStep * step) : kAheadShare * target) -
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
      if (i != *next && both > target && lane_seconds_[i] < kLeastShare * both) next = i;
    }
    LaneDescription& lane = lanes[*next];
    const double limit = decodes ? budget - used : kPassShare * target;
    const StepPlan::Pass pass = PassOf(lane, *next, limit, is_disturbed);
    const double seconds = costs_.Seconds(pass.work);
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

// Those whose prompts are read by then take part in the step that follows.
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
