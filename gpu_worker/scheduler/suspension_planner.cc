#include "gpu_worker/scheduler/suspension_planner.h"

#include <algorithm>
#include <tuple>

#include "gpu_worker/scheduler/request_predicates.h"

namespace retroinfer {
namespace {

// Seconds that a request waits before it preempts others: many rows come free by themselves sooner.
constexpr double kBeforeSuspending = 0.05;
// A request with fewer tokens left is not suspended: it is nearly done.
constexpr int64_t kLeastTokensLeft = 16;
// Waiting requests that one plan considers: bounds the plan's cost.
constexpr size_t kMaxWaiting = 32;

using RequestSpan = std::span<const RequestDescription* const>;

double WaitedSince(const RequestDescription& request) {
  if (request.phase == RequestPhase::kSuspended) return request.suspended_since;
  if (request.phase == RequestPhase::kDecoding) return request.resident_since;
  return request.arrival;
}

// What the request needs to proceed.
StepResources NeedOf(const SchedulerInput& input, const RequestDescription& request) {
  if (IsStalled(request)) {
    return {.dense_blocks = request.asked_dense_blocks, .meta_blocks = request.asked_meta_blocks};
  }
  if (request.phase == RequestPhase::kDecoding) return {.batch_rows = 1};
  StepResources need;
  // Reading a long prompt takes longer than BatchRows::kAheadSeconds: the prompt needs no row yet.
  need.batch_rows = request.phase == RequestPhase::kSuspended || IsShort(input, request) ? 1 : 0;
  if (request.phase == RequestPhase::kReady) return need;
  need.dense_blocks = request.dense_blocks;
  need.meta_blocks = request.meta_blocks;
  need.table_rows = 1;
  return need;
}

// What comes free when the request is suspended. A stalled request has no row of the batch.
StepResources ResourcesOf(const RequestDescription& request) {
  return {IsStalled(request) ? 0 : 1, request.dense_blocks, request.meta_blocks, 1};
}

// Whether the request needs no blocks of the bank to proceed, only a row.
bool TakesNoBlocks(const RequestDescription& request) {
  return request.phase == RequestPhase::kDecoding || request.phase == RequestPhase::kReady;
}

// CanProceed: the memory bank would grant this request its blocks. Commit() grants them.
bool CanProceed(const MemoryBank& bank, const RequestDescription& request) {
  if (IsStalled(request)) return bank.MayGrow(request);
  return TakesNoBlocks(request) || bank.MayBegin(request);
}

void Commit(const RequestDescription& request, MemoryBank& bank) {
  if (IsStalled(request)) return bank.Grow(request);
  if (!TakesNoBlocks(request)) bank.Begin(request);
}

// Suspends candidates, in their order, until their resources cover what is lacked and satisfy the
// bank, and spares those that later choices made unnecessary. Suspends none if all candidates
// together are not enough. Returns whether it suspended any.
bool Suspend(RequestSpan candidates, const RequestDescription& waiting, StepResources lacked,
             const MemoryBank& bank, int64_t free_suspended_blocks, StepPlan& plan) {
  std::vector<const RequestDescription*> chosen;
  const auto is_enough = [&](const RequestDescription* without) {
    MemoryBank after = bank;
    StepResources still = lacked;
    for (const RequestDescription* const one : chosen) {
      if (one == without) continue;
      still = still - ResourcesOf(*one);
      after.End(one->id);
    }
    return still.none() && CanProceed(after, waiting);
  };
  StepResources still = lacked;
  bool are_enough = false;
  for (const RequestDescription* const one : candidates) {
    if (are_enough) break;
    // Once nothing is lacked, the bank may still refuse: then the memory of every candidate helps.
    const bool helps = still.none() || ResourcesOf(*one).HelpsWith(still);
    if (one->suspended_blocks > free_suspended_blocks || !helps) continue;
    free_suspended_blocks -= one->suspended_blocks;
    still = still - ResourcesOf(*one);
    chosen.push_back(one);
    are_enough = still.none() && is_enough(nullptr);
  }
  if (!are_enough) return false;
  // A candidate that was chosen early may not be needed after later choices. The last candidates
  // are of the highest class: they are spared first.
  for (size_t i = chosen.size(); i-- > 0;) {
    if (is_enough(chosen[i])) chosen.erase(chosen.begin() + static_cast<ptrdiff_t>(i));
  }
  for (const RequestDescription* const one : chosen) plan.suspend.push_back(one->id);
  return true;
}

// Requests that hold a row of the batch, and stalled requests, which hold device memory.
std::vector<const RequestDescription*> DecodingRequests(const SchedulerInput& input,
                                                        RequestSpan batch) {
  std::vector<const RequestDescription*> all(batch.begin(), batch.end());
  for (const RequestDescription& request : input.requests) {
    if (IsStalled(request)) all.push_back(&request);
  }
  return all;
}

}  // namespace

struct SuspensionPlanner::Contest {
  std::vector<const RequestDescription*> decoding;
  const RequestDescription* head;  // BlockedRequests::HeadOfLine()
  int64_t free_lanes;
  int64_t long_ready;  // requests with long prompts that are ready for a lane
  StepResources free;  // less what earlier turns were promised
  MemoryBank bank;     // with what earlier turns were promised
};

// What is free, and what requests that are being suspended will give back.
StepResources SuspensionPlanner::FreeResources(const SchedulerInput& input) const {
  StepResources free{.batch_rows = rows_.NumFree(input),
                     .dense_blocks = input.free_dense_blocks,
                     .meta_blocks = input.free_meta_blocks,
                     .table_rows = input.free_table_rows};
  for (const RequestDescription& request : input.requests) {
    if (request.phase != RequestPhase::kLeaving) continue;
    free.dense_blocks += request.dense_blocks;
    free.meta_blocks += request.meta_blocks;
    free.table_rows += 1;
  }
  return free;
}

// Requests that could proceed with a row or with memory: a higher class first, then the tenant that
// was served least, then the oldest.
SuspensionPlanner::Requests SuspensionPlanner::WaitingRequests(const SchedulerInput& input,
                                                               RequestSpan batch) const {
  Requests waiting;
  for (const RequestDescription& request : input.requests) {
    if (IsStalled(request)) {
      const auto since = growth_.StalledSince(request);
      if (since.has_value() && input.now - *since >= kBeforeSuspending) waiting.push_back(&request);
      continue;
    }
    const bool is_left_out = request.phase == RequestPhase::kDecoding && request.can_decode &&
                             std::find(batch.begin(), batch.end(), &request) == batch.end();
    // No suspension gives the arena room: a suspended request keeps its extents.
    const bool waits = request.phase == RequestPhase::kReady ||
                       request.phase == RequestPhase::kSuspended ||
                       (request.phase == RequestPhase::kWaiting && !request.arena_is_full);
    if (!waits && !is_left_out) continue;
    if (input.now - WaitedSince(request) >= kBeforeSuspending) waiting.push_back(&request);
  }
  const size_t count = std::min(waiting.size(), kMaxWaiting);
  const auto turn = [&](const RequestDescription& one) {
    return std::make_tuple(one.priority, shares_.Served(one.tenant), one.arrival, one.id);
  };
  std::partial_sort(waiting.begin(), waiting.begin() + static_cast<ptrdiff_t>(count), waiting.end(),
                    [&](const auto* a, const auto* b) { return turn(*a) < turn(*b); });
  waiting.resize(count);
  return waiting;
}

// Requests that may be suspended for `waiting`, in the order of preference: the lowest class, the
// tenant that was served most, the fewest suspensions, the least to copy, the most tokens left.
SuspensionPlanner::Requests SuspensionPlanner::Candidates(RequestSpan decoding,
                                                          const RequestDescription& waiting,
                                                          double now) const {
  Requests candidates;
  for (const RequestDescription* const one : decoding) {
    const bool may_again = now - one->resident_since >= kLeastStay * one->num_suspensions;
    if (one->can_suspend && may_again && one->num_suspensions < kMaxSuspensions &&
        one->tokens_left >= kLeastTokensLeft && preempting_.MayBePreempted(*one, waiting)) {
      candidates.push_back(one);
    }
  }
  const auto turn = [&](const RequestDescription& one) {
    return std::make_tuple(-int64_t{one.priority}, -shares_.Served(one.tenant), one.num_suspensions,
                           one.suspended_blocks, -one.tokens_left, one.id);
  };
  std::sort(candidates.begin(), candidates.end(),
            [&](const auto* a, const auto* b) { return turn(*a) < turn(*b); });
  return candidates;
}

void SuspensionPlanner::Plan(const SchedulerInput& input, StepPlan& plan) {
  if (!options_.preempts) return;
  preempting_.Update(input.now);
  const Requests batch = rows_.NextStep(input, plan);
  Requests decoding = DecodingRequests(input, batch);
  if (decoding.empty()) return;
  const auto free_lanes = std::count_if(input.lanes.begin(), input.lanes.end(),
                                        [](const LaneDescription& lane) { return lane.is_free; });
  const auto long_ready = std::count_if(
      input.requests.begin(), input.requests.end(), [&](const RequestDescription& request) {
        return request.phase == RequestPhase::kReady && !IsShort(input, request);
      });
  Contest contest{.decoding = std::move(decoding),
                  .head = blocked_.HeadOfLine(input),
                  .free_lanes = free_lanes,
                  .long_ready = long_ready,
                  .free = FreeResources(input),
                  .bank = MemoryBank(input, lengths_)};
  for (const RequestDescription& request : input.requests) {
    if (request.phase == RequestPhase::kLeaving) contest.bank.End(request.id);
  }
  for (const RequestDescription* const waiting : WaitingRequests(input, batch)) {
    // One preempting request a plan: the next plan knows what the suspensions give back.
    if (Consider(input, *waiting, contest, plan) == Turn::kDone) return;
  }
}

// Decides for one waiting request: it proceeds with what is free, which is then promised to it, or
// others are suspended for it (kDone), or neither.
SuspensionPlanner::Turn SuspensionPlanner::Consider(const SchedulerInput& input,
                                                    const RequestDescription& waiting,
                                                    Contest& contest, StepPlan& plan) {
  const StepResources need = NeedOf(input, waiting);
  const bool decodes = waiting.phase == RequestPhase::kDecoding;
  const bool is_behind_head = !decodes && contest.head != nullptr && contest.head != &waiting &&
                              waiting.phase != RequestPhase::kReady;
  const bool overtakes = is_behind_head && blocked_.MayOvertake(waiting, *contest.head, input.now);
  if (is_behind_head && !overtakes && (need - contest.free).none()) {
    MemoryBank with_reservation = contest.bank;
    blocked_.ReserveFor(*contest.head, with_reservation);
    if (CanProceed(with_reservation, waiting)) {  // the reservation stays possible
      contest.free = contest.free - need;
      Commit(waiting, contest.bank);
      return Turn::kNext;
    }
  }
  const bool lacks_all = decodes && !IsStalled(waiting);  // all rows are taken
  const StepResources available =
      is_behind_head && !overtakes ? contest.free - NeedOf(input, *contest.head) : contest.free;
  const StepResources lacked = lacks_all ? need : need - available;
  if (lacked.none() && CanProceed(contest.bank, waiting)) {
    if (overtakes) preempting_.AddOnce(waiting, input.now);
    contest.free = contest.free - need;
    Commit(waiting, contest.bank);
    return Turn::kNext;
  }
  // A prompt that gets no lane now would not use the row.
  const bool wants_lane = !decodes && waiting.phase != RequestPhase::kSuspended;
  if (lacked.batch_rows > 0 && wants_lane && contest.free_lanes == 0) return Turn::kNext;
  // AdmissionPlanner admits one long prompt more than there are free lanes: preempting for further
  // ones would hold memory for prompts that cannot be read.
  if (wants_lane && need.batch_rows == 0 && contest.long_ready > contest.free_lanes) {
    return Turn::kNext;
  }
  if (!Suspend(Candidates(contest.decoding, waiting, input.now), waiting, lacked, contest.bank,
               input.free_suspended_blocks, plan)) {
    return Turn::kNext;
  }
  preempting_.Add(waiting, input.now);
  return Turn::kDone;
}

}  // namespace retroinfer
