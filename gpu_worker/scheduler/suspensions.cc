// Which requests are suspended for which. A request that waits for a row of the batch or for device
// memory may preempt decoding requests: requests of a lower class, and requests of its own class
// whose tenant was served far more than its own tenant.
//
// What keeps requests from preempting each other in turn:
// * A class is the priority that was asked for, without ageing: if a request may preempt another,
//   the other may not preempt it.
// * A request is suspended kMaxSuspensions times at most. After the first resumption it decodes for
//   kLeastStay at least, after the second one twice as long, and so on.
// * A request is suspended only if the suspensions of this plan, and those that are under way, are
//   enough for the waiting request.
#include <algorithm>
#include <tuple>

#include "gpu_worker/scheduler/request_order.h"
#include "gpu_worker/scheduler/scheduler.h"

namespace retroinfer {
namespace {

// Seconds that a request waits before it preempts others: many rows come free by themselves sooner.
constexpr double kBeforeSuspending = 0.05;
// A tenant's requests may be preempted for another tenant's of the same class once the tenant was
// served this much more. In tokens over weight.
constexpr double kFarOver = 8192;
// A request with fewer tokens left is not suspended: it is nearly done.
constexpr int64_t kLeastTokensLeft = 16;
// Waiting requests that one plan considers: bounds the plan's cost.
constexpr size_t kMaxWaiting = 32;

// Whether the request decodes, and lacks memory for its next token.
bool IsStalled(const RequestDescription& request) {
  return request.phase == RequestPhase::kDecoding && request.free_tokens <= 0;
}

double WaitedSince(const RequestDescription& request) {
  if (request.phase == RequestPhase::kSuspended) return request.suspended_since;
  if (request.phase == RequestPhase::kDecoding) return request.resident_since;
  return request.arrival;
}

}  // namespace

// Amounts of what a request needs to proceed: what is free, or what a request lacks (then an amount
// may be negative).
struct Scheduler::Resources {
  int64_t batch_rows = 0, dense_blocks = 0, meta_blocks = 0, table_rows = 0;

  bool none() const {
    return batch_rows <= 0 && dense_blocks <= 0 && meta_blocks <= 0 && table_rows <= 0;
  }
  // Whether these resources include any resource that is lacked.
  bool HelpsWith(const Resources& lacked) const {
    return (lacked.batch_rows > 0 && batch_rows > 0) ||
           (lacked.dense_blocks > 0 && dense_blocks > 0) ||
           (lacked.meta_blocks > 0 && meta_blocks > 0) || (lacked.table_rows > 0 && table_rows > 0);
  }
  Resources operator-(const Resources& other) const {
    return {batch_rows - other.batch_rows, dense_blocks - other.dense_blocks,
            meta_blocks - other.meta_blocks, table_rows - other.table_rows};
  }
};

// What is free, and what requests that are being suspended will give back.
Scheduler::Resources Scheduler::FreeResources(const SchedulerInput& input) const {
  Resources free{.batch_rows = BatchRowsLeft(input),
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
std::vector<const RequestDescription*> Scheduler::WaitingRequests(
    const SchedulerInput& input, std::span<const RequestDescription* const> batch) const {
  std::vector<const RequestDescription*> waiting;
  for (const RequestDescription& request : input.requests) {
    if (IsStalled(request)) {
      const auto found = stalled_.find(request.id);
      const bool has_waited =
          found != stalled_.end() && input.now - found->second.since >= kBeforeSuspending;
      if (has_waited) waiting.push_back(&request);
      continue;
    }
    const bool is_left_out = request.phase == RequestPhase::kDecoding && request.can_decode &&
                             std::find(batch.begin(), batch.end(), &request) == batch.end();
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

// What the request needs to proceed.
Scheduler::Resources Scheduler::NeedOf(const SchedulerInput& input,
                                       const RequestDescription& request) {
  Resources need;
  if (IsStalled(request)) {
    return {.dense_blocks = request.asked_dense_blocks, .meta_blocks = request.asked_meta_blocks};
  }
  if (request.phase == RequestPhase::kDecoding) return {.batch_rows = 1};
  // Reading a long prompt takes longer than kBatchRowAhead: the prompt needs no row yet.
  need.batch_rows = request.phase == RequestPhase::kSuspended || IsShort(input, request) ? 1 : 0;
  if (request.phase == RequestPhase::kReady) return need;
  need.dense_blocks = request.dense_blocks;
  need.meta_blocks = request.meta_blocks;
  need.table_rows = 1;
  return need;
}

bool Scheduler::HasPreempted(const RequestDescription& request, double now) const {
  const auto found = preempted_for_.find(request.id);
  return found != preempted_for_.end() && now - found->second < kPatience;
}

// Whether the request may take what is reserved for `head`. A request of a higher class may, until
// the head of line has waited so long that ageing has brought it up to that class.
bool Scheduler::MayOvertake(const RequestDescription& request, const RequestDescription& head,
                            double now) const {
  const auto blocked = blocked_.find(head.id);
  if (blocked == blocked_.end() || head.priority <= request.priority) return false;
  const double levels = static_cast<double>(head.priority) - request.priority;
  return now - blocked->second.since < kPatience + kLevelSeconds * levels;
}

bool Scheduler::IsPreemptibleBy(const RequestDescription& one,
                                const RequestDescription& other) const {
  if (one.priority != other.priority) return one.priority > other.priority;
  return one.tenant != other.tenant &&
         shares_.Served(one.tenant) - shares_.Served(other.tenant) > kFarOver;
}

// Requests that may be suspended for `other`, in the order of preference: the lowest class, the
// tenant that was served most, the fewest suspensions, the least to copy, the most tokens left.
std::vector<const RequestDescription*> Scheduler::PreemptionCandidates(
    std::span<const RequestDescription* const> batch, const RequestDescription& other,
    double now) const {
  std::vector<const RequestDescription*> candidates;
  for (const RequestDescription* const one : batch) {
    const bool may_again = now - one->resident_since >= kLeastStay * one->num_suspensions;
    if (one->can_suspend && may_again && one->num_suspensions < kMaxSuspensions &&
        one->tokens_left >= kLeastTokensLeft && IsPreemptibleBy(*one, other)) {
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

// CanProceed: the memory bank would grant this request its blocks. Commit() grants them.
bool Scheduler::CanProceed(const MemoryBank& bank, const RequestDescription& request) {
  if (IsStalled(request)) return bank.MayGrow(request);
  const bool takes_none =
      request.phase == RequestPhase::kDecoding || request.phase == RequestPhase::kReady;
  return takes_none || bank.MayBegin(request);
}

void Scheduler::Commit(const RequestDescription& request, MemoryBank& bank) {
  if (IsStalled(request)) return bank.Grow(request);
  const bool takes_none =
      request.phase == RequestPhase::kDecoding || request.phase == RequestPhase::kReady;
  if (!takes_none) bank.Begin(request);
}

// Suspends candidates, in their order, until their resources cover what is lacked and satisfy the
// bank, and spares those that later choices made unnecessary. Suspends none if all candidates
// together are not enough.
bool Scheduler::Suspend(std::span<const RequestDescription* const> candidates,
                        const RequestDescription& waiting, Resources lacked, const MemoryBank& bank,
                        int64_t free_suspended_blocks, StepPlan& plan) {
  const auto resources_of = [](const RequestDescription& request) -> Resources {
    return {IsStalled(request) ? 0 : 1, request.dense_blocks, request.meta_blocks, 1};
  };
  std::vector<const RequestDescription*> chosen;
  const auto is_enough = [&](const RequestDescription* without) {
    MemoryBank after = bank;
    Resources still = lacked;
    for (const RequestDescription* const one : chosen) {
      if (one == without) continue;
      still = still - resources_of(*one);
      after.End(one->id);
    }
    return still.none() && CanProceed(after, waiting);
  };
  Resources still = lacked;
  bool are_enough = false;
  for (const RequestDescription* const one : candidates) {
    if (are_enough) break;
    // Once nothing is lacked, the bank may still refuse: then the memory of every candidate helps.
    const bool helps = still.none() || resources_of(*one).HelpsWith(still);
    if (one->suspended_blocks > free_suspended_blocks || !helps) continue;
    free_suspended_blocks -= one->suspended_blocks;
    still = still - resources_of(*one);
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
std::vector<const RequestDescription*> Scheduler::DecodingRequests(
    const SchedulerInput& input, std::span<const RequestDescription* const> batch) {
  std::vector<const RequestDescription*> all(batch.begin(), batch.end());
  for (const RequestDescription& request : input.requests) {
    if (IsStalled(request)) all.push_back(&request);
  }
  return all;
}

void Scheduler::PlanSuspensions(const SchedulerInput& input, StepPlan& plan) {
  if (!options_.preempts) return;
  absl::erase_if(preempted_for_,
                 [&](const auto& entry) { return input.now - entry.second >= kPatience; });
  const std::vector<const RequestDescription*> batch = BatchOf(input, plan);
  const std::vector<const RequestDescription*> decoding = DecodingRequests(input, batch);
  if (decoding.empty()) return;
  const auto free_lanes = std::count_if(input.lanes.begin(), input.lanes.end(),
                                        [](const LaneDescription& lane) { return lane.is_free; });
  // PlanAdmissions() admits one long prompt more than there are free lanes: preempting for further
  // ones would hold memory for prompts that cannot be read.
  const auto long_ones = std::count_if(
      input.requests.begin(), input.requests.end(), [&](const RequestDescription& request) {
        return request.phase == RequestPhase::kReady && !IsShort(input, request);
      });
  const RequestDescription* const head = HeadOfLine(input);
  Resources free = FreeResources(input);
  MemoryBank bank(input, lengths_);
  for (const RequestDescription& request : input.requests) {
    if (request.phase == RequestPhase::kLeaving) bank.End(request.id);
  }
  for (const RequestDescription* const waiting : WaitingRequests(input, batch)) {
    const Resources need = NeedOf(input, *waiting);
    const bool decodes = waiting->phase == RequestPhase::kDecoding;
    const bool is_behind_head =
        !decodes && head != nullptr && head != waiting && waiting->phase != RequestPhase::kReady;
    const bool overtakes = is_behind_head && MayOvertake(*waiting, *head, input.now);
    if (is_behind_head && !overtakes && (need - free).none()) {
      MemoryBank with_reservation = bank;
      ReserveFor(*head, with_reservation);
      if (CanProceed(with_reservation, *waiting)) {  // the reservation stays possible
        free = free - need;
        Commit(*waiting, bank);
        continue;
      }
    }
    const bool lacks_all = decodes && !IsStalled(*waiting);  // all rows are taken
    const Resources lacked =
        lacks_all ? need
                  : need - (is_behind_head && !overtakes ? free - NeedOf(input, *head) : free);
    if (lacked.none() && CanProceed(bank, *waiting)) {
      if (overtakes) preempted_for_.try_emplace(waiting->id, input.now);
      free = free - need;
      Commit(*waiting, bank);
      continue;
    }
    // A prompt that gets no lane now would not use the row.
    const bool wants_lane = !decodes && waiting->phase != RequestPhase::kSuspended;
    if (lacked.batch_rows > 0 && wants_lane && free_lanes == 0) continue;
    if (wants_lane && need.batch_rows == 0 && long_ones > free_lanes) continue;
    if (!Suspend(PreemptionCandidates(decoding, *waiting, input.now), *waiting, lacked, bank,
                 input.free_suspended_blocks, plan)) {
      continue;
    }
    preempted_for_[waiting->id] = input.now;
    return;  // one preempting request a plan: the next plan knows what the suspensions give back
  }
}

}  // namespace retroinfer
