// Who gets memory: those who decode and ask for more, then those who wait.
#include <algorithm>
#include <tuple>

#include "absl/container/flat_hash_set.h"
#include "gpu_worker/scheduler/request_order.h"
#include "gpu_worker/scheduler/scheduler.h"

namespace retroinfer {
namespace {

// Requests that are looked at in one plan for whether they fit.
constexpr int kMaxTries = 32;

}  // namespace

// --- Growth

// The one that others stepped aside for, and that has not begun yet.
const RequestDescription* Scheduler::RoomMadeFor(const SchedulerInput& input) const {
  if (made_room_for_.empty()) return nullptr;
  for (const RequestDescription& request : input.requests) {
    const bool waits =
        request.phase == RequestPhase::kWaiting || request.phase == RequestPhase::kSuspended;
    if (waits && !request.arena_is_full && HasRoomMade(request, input.now)) return &request;
  }
  return nullptr;
}

// Those of a higher class first, then those who decode longest: they end, and others go on.
bool Scheduler::GrowsLater(const RequestDescription& one, const RequestDescription& other,
                           double now) const {
  const auto turn = [&](const RequestDescription& request) {
    return std::make_tuple(!HasRoomMade(request, now), request.priority, request.decoding_since,
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
  const RequestDescription* const made_for = RoomMadeFor(input);
  bool is_kept = false;
  absl::flat_hash_map<uint64_t, Stall> stalled;
  for (const RequestDescription* const one : asking) {
    // What others gave up is not for those who would have to give it up as well.
    if (!is_kept && made_for != nullptr && YieldsTo(*one, *made_for) && bank.MayBegin(*made_for)) {
      bank.Begin(*made_for);
      is_kept = true;
    }
    if (bank.MayGrow(*one)) {
      bank.Grow(*one);
      plan.grow.push_back(one->id);
    } else if (one->room <= 0) {
      const auto found = stalled_.find(one->id);
      const double since = found == stalled_.end() ? input.now : found->second.since;
      stalled[one->id] = {.since = since,
                          .priority = one->priority,
                          .lacks_dense = one->asked_dense_blocks > 0,
                          .lacks_meta = one->asked_meta_blocks > 0};
    }
  }
  if (is_kept) bank.End(made_for->id);
  stalled_ = std::move(stalled);
}

// --- Admission

// Whether somebody who decodes has waited for memory so long that no other of his class or below
// who takes any of that kind begins before he goes on.
bool Scheduler::IsKeptFromStalled(const RequestDescription& request, double now) const {
  if (HasRoomMade(request, now)) return false;
  const bool takes_dense = request.dense_blocks + request.more_dense_blocks > 0;
  const bool takes_meta = request.meta_blocks + request.more_meta_blocks > 0;
  return std::any_of(stalled_.begin(), stalled_.end(), [&](const auto& entry) {
    const Stall& stall = entry.second;
    const bool takes_it = (stall.lacks_dense && takes_dense) || (stall.lacks_meta && takes_meta);
    return takes_it && now - stall.since >= kPatience && request.priority >= stall.priority;
  });
}

// What may still be admitted in this plan.
struct Scheduler::Admission {
  int64_t short_ones, long_ones;  // of prompts of either kind
  int64_t reserving;
  int64_t table_rows;

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
};

// The request that others stepped aside for, or the one that waits for room longest, if it no more
// lets others pass. One that waits for the arena holds no memory against those who have stepped
// aside: they may hold what it waits for.
const RequestDescription* Scheduler::Held(const SchedulerInput& input) const {
  const RequestDescription* held = nullptr;
  double since = std::numeric_limits<double>::infinity();
  if (blocked_.empty() && made_room_for_.empty()) return held;
  const bool any_aside =
      std::any_of(input.requests.begin(), input.requests.end(),
                  [](const auto& request) { return request.phase == RequestPhase::kSuspended; });
  for (const RequestDescription& request : input.requests) {
    if (request.phase != RequestPhase::kWaiting && request.phase != RequestPhase::kSuspended) {
      continue;
    }
    if (request.arena_is_full && any_aside) continue;
    if (HasRoomMade(request, input.now)) return &request;
    const auto found = blocked_.find(request.id);
    if (found == blocked_.end() || found->second.since > input.now - kPatience) continue;
    // Who has stepped aside has waited before.
    const bool is_aside = request.phase == RequestPhase::kSuspended;
    const double begun =
        is_aside ? std::min(request.arrival, found->second.since) : found->second.since;
    if (begun > since) continue;
    since = begun;
    held = &request;
  }
  return held;
}

// The one that has waited for room in the arena longest: what becomes free there is kept for it
// until it has its extents, whatever else it lacks, and while it hears whether it gets them.
const RequestDescription* Scheduler::HeldForArena(const SchedulerInput& input) const {
  const RequestDescription* held = nullptr;
  double since = input.now - kPatience;
  if (blocked_.empty()) return held;
  for (const RequestDescription& request : input.requests) {
    const auto found = blocked_.find(request.id);
    if (found == blocked_.end() || !found->second.lacks_extents) continue;
    if (found->second.since > since) continue;
    since = found->second.since;
    held = &request;
  }
  return held;
}

// Who waits for an answer of the store may be blocked again.
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

// The request finds no room now. `is_held`: others are to leave it what it lacks.
void Scheduler::Block(const SchedulerInput& input, const RequestDescription& request,
                      bool is_held) {
  Blocked& blocked = blocked_.try_emplace(request.id, Blocked{.since = input.now}).first->second;
  blocked.lacks_extents |= request.arena_is_full;
  if (!is_held || blocked.there.has_value()) return;
  blocked.there.emplace();
  for (const RequestDescription& one : input.requests) {
    if (one.phase != RequestPhase::kWaiting && one.phase != RequestPhase::kSuspended) {
      blocked.there->push_back(one.id);
    }
  }
  std::sort(blocked.there->begin(), blocked.there->end());
}

// Returns how many have to end before it can begin.
size_t Scheduler::KeepFor(const RequestDescription& held, MemoryBank& bank) const {
  const auto found = blocked_.find(held.id);
  const bool is_known = found != blocked_.end() && found->second.there.has_value();
  return bank.KeepFor(
      held,
      [&](uint64_t id) {
        return !is_known ||
               std::binary_search(found->second.there->begin(), found->second.there->end(), id);
      },
      held.arena_is_full);
}

void Scheduler::PlanAdmissions(const SchedulerInput& input, MemoryBank& bank, Order& order,
                               StepPlan& plan) {
  Admission left{.short_ones = PlacesLeft(input),
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
    if (request == nullptr && is_held) {
      // It has no place. If it lacked anything else before, that stays kept.
      if (const auto found = blocked_.find(held->id);
          found != blocked_.end() && found->second.there.has_value()) {
        KeepFor(*held, bank);
      }
      continue;
    }
    if (request == nullptr) break;
    const bool is_aside = request->phase == RequestPhase::kSuspended;  // it has its extents
    const bool arena_is_kept =
        arena_held != nullptr && arena_held != request && request->wants_extents && !is_aside;
    const bool may_begin = !IsKeptFromStalled(*request, input.now) && bank.MayBegin(*request);
    if (!may_begin || left.table_rows <= 0 || request->arena_is_full ||
        (arena_is_kept && !is_held)) {
      Block(input, *request, is_held);
      // Who ends gives back a row and a place.
      if (is_held && KeepFor(*request, bank) == 0) {
        --left.table_rows;
        --left.short_ones;
      }
      continue;
    }
    if (is_held) held = nullptr;
    bank.Begin(*request);
    --left.table_rows;
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
}

}  // namespace retroinfer
