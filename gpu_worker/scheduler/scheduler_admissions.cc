// Which requests get device memory: first decoding requests that ask for more, then waiting ones.
#include <algorithm>
#include <tuple>

#include "absl/container/flat_hash_set.h"
#include "gpu_worker/scheduler/request_order.h"
#include "gpu_worker/scheduler/scheduler.h"

namespace retroinfer {
namespace {

// Waiting requests that one plan tries to admit: bounds the plan's cost.
constexpr int kMaxTries = 32;

}  // namespace

// --- Growth

// The request for which others were preempted, and that has not begun yet; null: there is none.
const RequestDescription* Scheduler::PreemptingRequest(const SchedulerInput& input) const {
  if (preempted_for_.empty()) return nullptr;
  for (const RequestDescription& request : input.requests) {
    const bool waits =
        request.phase == RequestPhase::kWaiting || request.phase == RequestPhase::kSuspended;
    if (waits && !request.arena_is_full && HasPreempted(request, input.now)) return &request;
  }
  return nullptr;
}

// Requests of a higher class grow first. Within a class, the request that has decoded longest grows
// first: the earliest end frees blocks for the others.
bool Scheduler::GrowsLater(const RequestDescription& one, const RequestDescription& other,
                           double now) const {
  const auto turn = [&](const RequestDescription& request) {
    return std::make_tuple(!HasPreempted(request, now), request.priority, request.decoding_since,
                           request.id);
  };
  return turn(one) > turn(other);
}

void Scheduler::PlanGrowth(const SchedulerInput& input, MemoryBank& bank, StepPlan& plan) {
  std::vector<const RequestDescription*> asking;
  for (const RequestDescription& request : input.requests) {
    const bool asks = request.phase == RequestPhase::kDecoding &&
                      request.asked_dense_blocks + request.asked_meta_blocks > 0;
    const bool leaves =
        std::find(plan.suspend.begin(), plan.suspend.end(), request.id) != plan.suspend.end();
    if (asks && !leaves) asking.push_back(&request);
  }
  std::sort(asking.begin(), asking.end(), [&](const auto* one, const auto* other) {
    return GrowsLater(*other, *one, input.now);
  });
  const RequestDescription* const preempting = PreemptingRequest(input);
  bool is_reserved = false;
  absl::flat_hash_map<uint64_t, Stall> stalled;
  for (const RequestDescription* const one : asking) {
    // Blocks of preempted requests are for the request that they were preempted for. Without this,
    // a request of their own class would take the blocks by growing.
    if (!is_reserved && preempting != nullptr && IsPreemptibleBy(*one, *preempting) &&
        bank.MayBegin(*preempting)) {
      bank.Begin(*preempting);
      is_reserved = true;
    }
    if (bank.MayGrow(*one)) {
      bank.Grow(*one);
      plan.grow.push_back(one->id);
    } else if (one->free_tokens <= 0) {
      const auto found = stalled_.find(one->id);
      const double since = found == stalled_.end() ? input.now : found->second.since;
      stalled[one->id] = {.since = since,
                          .priority = one->priority,
                          .lacks_dense = one->asked_dense_blocks > 0,
                          .lacks_meta = one->asked_meta_blocks > 0};
    }
  }
  if (is_reserved) bank.End(preempting->id);
  stalled_ = std::move(stalled);
}

// --- Admission

// Whether a decoding request of the request's class, or a higher one, has been stalled for
// kPatience and lacks a kind of blocks that the request would take. Then the request does not
// begin: it would take the blocks that the stalled request waits for.
bool Scheduler::IsBehindStalled(const RequestDescription& request, double now) const {
  if (HasPreempted(request, now)) return false;
  const bool takes_dense = request.dense_blocks + request.more_dense_blocks > 0;
  const bool takes_meta = request.meta_blocks + request.more_meta_blocks > 0;
  return std::any_of(stalled_.begin(), stalled_.end(), [&](const auto& entry) {
    const Stall& stall = entry.second;
    const bool takes_it = (stall.lacks_dense && takes_dense) || (stall.lacks_meta && takes_meta);
    return takes_it && now - stall.since >= kPatience && request.priority >= stall.priority;
  });
}

// How many requests may still be admitted in this plan.
struct Scheduler::Admission {
  int64_t short_ones, long_ones;  // requests with short, and with long prompts
  int64_t reserving;              // requests that wait for the store's answer
  int64_t table_rows;

  // Prefixes (RequestDescription::prefix) of requests that are admitted and not yet read.
  absl::flat_hash_set<uint64_t> prefixes = {};

  // A long prompt that is read together with another needs no lane of its own.
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
};

// HeadOfLine: the request for which freed memory is reserved: a preempting request first, else the
// request that has been blocked longest, if that is more than kPatience. A request that is blocked
// on the arena is skipped while others are suspended: the suspended requests hold their extents,
// and would wait for device memory reserved for the request that waits for them.
const RequestDescription* Scheduler::HeadOfLine(const SchedulerInput& input) const {
  const RequestDescription* head = nullptr;
  double since = std::numeric_limits<double>::infinity();
  if (blocked_.empty() && preempted_for_.empty()) return head;
  const bool any_suspended =
      std::any_of(input.requests.begin(), input.requests.end(),
                  [](const auto& request) { return request.phase == RequestPhase::kSuspended; });
  for (const RequestDescription& request : input.requests) {
    if (request.phase != RequestPhase::kWaiting && request.phase != RequestPhase::kSuspended) {
      continue;
    }
    if (request.arena_is_full && any_suspended) continue;
    if (HasPreempted(request, input.now)) return &request;
    const auto found = blocked_.find(request.id);
    if (found == blocked_.end() || found->second.since > input.now - kPatience) continue;
    // A suspended request was admitted before: its age counts, not the time of its suspension.
    const bool is_suspended = request.phase == RequestPhase::kSuspended;
    const double begun =
        is_suspended ? std::min(request.arrival, found->second.since) : found->second.since;
    if (begun > since) continue;
    since = begun;
    head = &request;
  }
  return head;
}

// The request that has been blocked on the arena longest, and more than kPatience. Freed pages are
// reserved for it until it has its extents, also while it lacks device memory and while it waits
// for the store's answer: otherwise short requests would take the pages one by one.
const RequestDescription* Scheduler::HeadOfLineForArena(const SchedulerInput& input) const {
  const RequestDescription* head = nullptr;
  double since = input.now - kPatience;
  if (blocked_.empty()) return head;
  for (const RequestDescription& request : input.requests) {
    const auto found = blocked_.find(request.id);
    if (found == blocked_.end() || !found->second.lacks_extents) continue;
    if (found->second.since > since) continue;
    since = found->second.since;
    head = &request;
  }
  return head;
}

// Forgets requests that are no longer blocked. A request that waits for the store's answer stays:
// if the arena is full, the request is blocked as before, and its patience does not begin anew.
void Scheduler::UpdateBlocked(const SchedulerInput& input) {
  if (blocked_.empty()) return;
  absl::flat_hash_set<uint64_t> waiting;
  for (const RequestDescription& request : input.requests) {
    if (request.phase == RequestPhase::kWaiting || request.phase == RequestPhase::kSuspended ||
        request.phase == RequestPhase::kReserving) {
      waiting.insert(request.id);
    }
  }
  absl::erase_if(blocked_, [&](const auto& entry) { return !waiting.contains(entry.first); });
}

// Notes that the request lacks memory now. `is_head`: memory is reserved for it from now on, and
// the requests that hold memory now are the ones whose ends the reservation may wait for.
void Scheduler::Block(const SchedulerInput& input, const RequestDescription& request,
                      bool is_head) {
  Blocked& blocked = blocked_.try_emplace(request.id, Blocked{.since = input.now}).first->second;
  blocked.lacks_extents |= request.arena_is_full;
  if (!is_head || blocked.holders.has_value()) return;
  blocked.holders.emplace();
  for (const RequestDescription& one : input.requests) {
    if (one.phase != RequestPhase::kWaiting && one.phase != RequestPhase::kSuspended) {
      blocked.holders->push_back(one.id);
    }
  }
  std::sort(blocked.holders->begin(), blocked.holders->end());
}

// Reserves memory for the head of line. Returns how many requests have to end before it can begin.
size_t Scheduler::ReserveFor(const RequestDescription& head, MemoryBank& bank) const {
  const auto found = blocked_.find(head.id);
  const bool is_known = found != blocked_.end() && found->second.holders.has_value();
  return bank.ReserveFor(
      head,
      [&](uint64_t id) {
        return !is_known ||
               std::binary_search(found->second.holders->begin(), found->second.holders->end(), id);
      },
      head.arena_is_full);
}

void Scheduler::PlanAdmissions(const SchedulerInput& input, MemoryBank& bank, Order& order,
                               StepPlan& plan) {
  Admission left{.short_ones = BatchRowsLeft(input),
                 .long_ones = 1,
                 .reserving = options_.max_batch,
                 .table_rows = input.free_table_rows};
  for (const LaneDescription& lane : input.lanes) left.long_ones += lane.is_free ? 1 : 0;
  for (const RequestDescription& request : input.requests) {
    if (request.phase == RequestPhase::kReserving) --left.reserving;
    if (request.phase == RequestPhase::kReserving) left.CountPrefix(request);
    if (request.phase == RequestPhase::kReady) left.Count(request, IsShort(input, request));
  }
  UpdateBlocked(input);
  const RequestDescription* head = HeadOfLine(input);
  const RequestDescription* const arena_head = HeadOfLineForArena(input);
  std::vector<const RequestDescription*> ready;
  const auto may_admit = [&](const RequestDescription& request) {
    if (request.phase == RequestPhase::kSuspended) return left.short_ones > 0;
    return request.phase == RequestPhase::kWaiting && left.May(request, IsShort(input, request));
  };
  for (int tries = 0; tries < kMaxTries && left.reserving > 0; ++tries) {
    const bool is_head = tries == 0 && head != nullptr;
    const RequestDescription* const request = order.Next([&](const RequestDescription& one) {
      return may_admit(one) && (!is_head || &one == head);
    });
    if (request == nullptr && is_head) {
      // The head of line has no row or lane now. Memory that was reserved for it stays reserved.
      if (const auto found = blocked_.find(head->id);
          found != blocked_.end() && found->second.holders.has_value()) {
        ReserveFor(*head, bank);
      }
      continue;
    }
    if (request == nullptr) break;
    const bool is_suspended = request->phase == RequestPhase::kSuspended;  // has its extents
    const bool arena_is_reserved =
        arena_head != nullptr && arena_head != request && request->wants_extents && !is_suspended;
    const bool may_begin = !IsBehindStalled(*request, input.now) && bank.MayBegin(*request);
    if (!may_begin || left.table_rows <= 0 || request->arena_is_full ||
        (arena_is_reserved && !is_head)) {
      Block(input, *request, is_head);
      // If the reservation waits for ends, each end gives back a table row and a row of the batch.
      // Otherwise both are reserved here.
      if (is_head && ReserveFor(*request, bank) == 0) {
        --left.table_rows;
        --left.short_ones;
      }
      continue;
    }
    if (is_head) head = nullptr;
    bank.Begin(*request);
    --left.table_rows;
    if (is_suspended) {
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
    // A request that asks the store for nothing can be read at once.
    if (!request->asks_store) ready.push_back(request);
  }
  for (const RequestDescription* const request : ready) order.PutBack(*request, *this);
}

}  // namespace retroinfer
