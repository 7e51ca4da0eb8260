// Who steps aside for whom. A request that waits for a place of the batch or for device memory gets
// what decoding requests hold: of those of a lower class, and of its own class of tenants that got
// far more than its own.
//
// What keeps requests from going to and fro:
// * Classes are the priorities that were asked for, without ageing: nobody steps aside for one that
//   would step aside for it.
// * Each steps aside kMaxSuspensions times at most, and stays for kLeastStay once it is back, twice
//   that long after the second time, and so on.
// * Somebody steps aside only if that, and what others are giving up already, is enough.
#include <algorithm>
#include <tuple>

#include "gpu_worker/scheduler/request_order.h"
#include "gpu_worker/scheduler/scheduler.h"

namespace retroinfer {
namespace {

// Seconds that a request waits before others step aside for it: many places become free by then.
constexpr double kBeforeSuspending = 0.05;
// Tokens over weight that a tenant got more than another one of the same class, for whose requests
// its own step aside.
constexpr double kFarOver = 8192;
// One with fewer tokens to come is nearly done.
constexpr int64_t kLeastTokensLeft = 16;
// Requests that are looked at in one plan.
constexpr size_t kMaxWaiting = 32;

// Decodes, and has no memory for its next token.
bool IsStalled(const RequestDescription& request) {
  return request.phase == RequestPhase::kDecoding && request.room <= 0;
}

double WaitedSince(const RequestDescription& request) {
  if (request.phase == RequestPhase::kSuspended) return request.suspended_since;
  if (request.phase == RequestPhase::kDecoding) return request.resident_since;
  return request.arrival;
}

}  // namespace

// Of places and device memory: what is free, or what somebody lacks.
struct Scheduler::Room {
  int64_t places = 0, dense_blocks = 0, meta_blocks = 0, table_rows = 0;

  bool none() const {
    return places <= 0 && dense_blocks <= 0 && meta_blocks <= 0 && table_rows <= 0;
  }
  // Whether some of what is lacked is here.
  bool HelpsWith(const Room& lacked) const {
    return (lacked.places > 0 && places > 0) || (lacked.dense_blocks > 0 && dense_blocks > 0) ||
           (lacked.meta_blocks > 0 && meta_blocks > 0) || (lacked.table_rows > 0 && table_rows > 0);
  }
  Room operator-(const Room& other) const {
    return {places - other.places, dense_blocks - other.dense_blocks,
            meta_blocks - other.meta_blocks, table_rows - other.table_rows};
  }
};

// What is free, with what those hold who are leaving.
Scheduler::Room Scheduler::FreeRoom(const SchedulerInput& input) const {
  Room room{.places = PlacesLeft(input),
            .dense_blocks = input.free_dense_blocks,
            .meta_blocks = input.free_meta_blocks,
            .table_rows = input.free_table_rows};
  for (const RequestDescription& request : input.requests) {
    if (request.phase != RequestPhase::kLeaving) continue;
    room.dense_blocks += request.dense_blocks;
    room.meta_blocks += request.meta_blocks;
    room.table_rows += 1;
  }
  return room;
}

// Those who could go on if they had a place or memory, by class.
std::vector<const RequestDescription*> Scheduler::WhoWaitsForRoom(
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

// What the request needs to go on.
Scheduler::Room Scheduler::NeedOf(const SchedulerInput& input, const RequestDescription& request) {
  Room need;
  if (IsStalled(request)) {
    return {.dense_blocks = request.asked_dense_blocks, .meta_blocks = request.asked_meta_blocks};
  }
  if (request.phase == RequestPhase::kDecoding) return {.places = 1};
  // A long prompt is read before it has a place.
  need.places = request.phase == RequestPhase::kSuspended || IsShort(input, request) ? 1 : 0;
  if (request.phase == RequestPhase::kReady) return need;
  need.dense_blocks = request.dense_blocks;
  need.meta_blocks = request.meta_blocks;
  need.table_rows = 1;
  return need;
}

bool Scheduler::HasRoomMade(const RequestDescription& request, double now) const {
  const auto found = made_room_for_.find(request.id);
  return found != made_room_for_.end() && now - found->second < kPatience;
}

// Whether a request may take what is kept for `held`: of a higher class, for as long as it takes
// the other one to come up to it.
bool Scheduler::Passes(const RequestDescription& request, const RequestDescription& held,
                       double now) const {
  const auto blocked = blocked_.find(held.id);
  if (blocked == blocked_.end() || held.priority <= request.priority) return false;
  const double levels = static_cast<double>(held.priority) - request.priority;
  return now - blocked->second.since < kPatience + kLevelSeconds * levels;
}

bool Scheduler::YieldsTo(const RequestDescription& one, const RequestDescription& other) const {
  if (one.priority != other.priority) return one.priority > other.priority;
  return one.tenant != other.tenant &&
         shares_.Served(one.tenant) - shares_.Served(other.tenant) > kFarOver;
}

// Those who may step aside for `other`, who should first: the lowest class, the tenant that got
// most, who did least often, the least to copy, the most to come.
std::vector<const RequestDescription*> Scheduler::WhoYields(
    std::span<const RequestDescription* const> batch, const RequestDescription& other,
    double now) const {
  std::vector<const RequestDescription*> yielding;
  for (const RequestDescription* const one : batch) {
    const bool may_again = now - one->resident_since >= kLeastStay * one->num_suspensions;
    if (one->can_suspend && may_again && one->num_suspensions < kMaxSuspensions &&
        one->tokens_left >= kLeastTokensLeft && YieldsTo(*one, other)) {
      yielding.push_back(one);
    }
  }
  const auto turn = [&](const RequestDescription& one) {
    return std::make_tuple(-int64_t{one.priority}, -shares_.Served(one.tenant), one.num_suspensions,
                           one.suspended_blocks, -one.tokens_left, one.id);
  };
  std::sort(yielding.begin(), yielding.end(),
            [&](const auto* a, const auto* b) { return turn(*a) < turn(*b); });
  return yielding;
}

// Whether the bank gives the request what it waits for, and that it does.
bool Scheduler::MayGoOn(const MemoryBank& bank, const RequestDescription& request) {
  if (IsStalled(request)) return bank.MayGrow(request);
  const bool takes_none =
      request.phase == RequestPhase::kDecoding || request.phase == RequestPhase::kReady;
  return takes_none || bank.MayBegin(request);
}

void Scheduler::Give(const RequestDescription& request, MemoryBank& bank) {
  if (IsStalled(request)) return bank.Grow(request);
  const bool takes_none =
      request.phase == RequestPhase::kDecoding || request.phase == RequestPhase::kReady;
  if (!takes_none) bank.Begin(request);
}

// Lets as few step aside for `waiting` as give what is lacked and are enough for the bank; nobody,
// if all together are not.
bool Scheduler::Suspend(std::span<const RequestDescription* const> yielding,
                        const RequestDescription& waiting, Room lacked, const MemoryBank& bank,
                        int64_t free_suspended_blocks, StepPlan& plan) {
  const auto room_of = [](const RequestDescription& request) -> Room {
    return {IsStalled(request) ? 0 : 1, request.dense_blocks, request.meta_blocks, 1};
  };
  std::vector<const RequestDescription*> chosen;
  const auto is_enough = [&](const RequestDescription* without) {
    MemoryBank after = bank;
    Room still = lacked;
    for (const RequestDescription* const one : chosen) {
      if (one == without) continue;
      still = still - room_of(*one);
      after.End(one->id);
    }
    return still.none() && MayGoOn(after, waiting);
  };
  Room still = lacked;
  bool are_enough = false;
  for (const RequestDescription* const one : yielding) {
    if (are_enough) break;
    // Where the bank wants more than what is lacked at once, anyone's memory helps.
    const bool helps = still.none() || room_of(*one).HelpsWith(still);
    if (one->suspended_blocks > free_suspended_blocks || !helps) continue;
    free_suspended_blocks -= one->suspended_blocks;
    still = still - room_of(*one);
    chosen.push_back(one);
    are_enough = still.none() && is_enough(nullptr);
  }
  if (!are_enough) return false;
  // One that was chosen early may not be needed any more. The last ones are of the highest class.
  for (size_t i = chosen.size(); i-- > 0;) {
    if (is_enough(chosen[i])) chosen.erase(chosen.begin() + static_cast<ptrdiff_t>(i));
  }
  for (const RequestDescription* const one : chosen) plan.suspend.push_back(one->id);
  return true;
}

// Those who hold a place, or device memory although they wait for more.
std::vector<const RequestDescription*> Scheduler::WhoDecodes(
    const SchedulerInput& input, std::span<const RequestDescription* const> batch) {
  std::vector<const RequestDescription*> all(batch.begin(), batch.end());
  for (const RequestDescription& request : input.requests) {
    if (IsStalled(request)) all.push_back(&request);
  }
  return all;
}

void Scheduler::PlanSuspensions(const SchedulerInput& input, StepPlan& plan) {
  if (!options_.preempts) return;
  absl::erase_if(made_room_for_,
                 [&](const auto& entry) { return input.now - entry.second >= kPatience; });
  const std::vector<const RequestDescription*> batch = BatchOf(input, plan);
  const std::vector<const RequestDescription*> decoding = WhoDecodes(input, batch);
  if (decoding.empty()) return;
  const auto free_lanes = std::count_if(input.lanes.begin(), input.lanes.end(),
                                        [](const LaneDescription& lane) { return lane.is_free; });
  // As many long prompts as have a lane get their memory, and the next one.
  const auto long_ones = std::count_if(
      input.requests.begin(), input.requests.end(), [&](const RequestDescription& request) {
        return request.phase == RequestPhase::kReady && !IsShort(input, request);
      });
  const RequestDescription* const held = Held(input);
  Room room = FreeRoom(input);
  MemoryBank bank(input, lengths_);
  for (const RequestDescription& request : input.requests) {
    if (request.phase == RequestPhase::kLeaving) bank.End(request.id);
  }
  for (const RequestDescription* const waiting : WhoWaitsForRoom(input, batch)) {
    const Room need = NeedOf(input, *waiting);
    const bool decodes = waiting->phase == RequestPhase::kDecoding;
    const bool is_kept =
        !decodes && held != nullptr && held != waiting && waiting->phase != RequestPhase::kReady;
    const bool passes = is_kept && Passes(*waiting, *held, input.now);
    if (is_kept && !passes && (need - room).none()) {
      MemoryBank keeping = bank;
      KeepFor(*held, keeping);
      if (MayGoOn(keeping, *waiting)) {  // it leaves what is kept
        room = room - need;
        Give(*waiting, bank);
        continue;
      }
    }
    const bool lacks_all = decodes && !IsStalled(*waiting);  // a place, while others have them all
    const Room lacked =
        lacks_all ? need : need - (is_kept && !passes ? room - NeedOf(input, *held) : room);
    if (lacked.none() && MayGoOn(bank, *waiting)) {
      if (passes) made_room_for_.try_emplace(waiting->id, input.now);
      room = room - need;
      Give(*waiting, bank);
      continue;
    }
    // A prompt that has no lane yet could not use a place.
    const bool wants_lane = !decodes && waiting->phase != RequestPhase::kSuspended;
    if (lacked.places > 0 && wants_lane && free_lanes == 0) continue;
    if (wants_lane && need.places == 0 && long_ones > free_lanes) continue;
    if (!Suspend(WhoYields(decoding, *waiting, input.now), *waiting, lacked, bank,
                 input.free_suspended_blocks, plan)) {
      continue;
    }
    made_room_for_[waiting->id] = input.now;
    return;
  }
}

}  // namespace retroinfer
