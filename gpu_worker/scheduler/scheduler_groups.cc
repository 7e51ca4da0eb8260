// Which prompts are read together: short ones, one that is alone in its lane, and those that share
// what they have in the cache, which is read once for all of them.
#include <algorithm>
#include <utility>

#include "gpu_worker/scheduler/lane_rows.h"
#include "gpu_worker/scheduler/request_order.h"
#include "gpu_worker/scheduler/scheduler.h"

namespace retroinfer {
namespace {

// Rows that are read together, in passes.
constexpr int64_t kGroupPasses = 2;
// Who could share its beginning waits for others for so much of what sharing would save.
constexpr double kGatherShare = 0.1;
constexpr double kGatherShareOfComing = 0.3;  // while one is on its way
// Others that had a prefix are expected again for so many seconds.
constexpr double kCompanySeconds = 10;
constexpr size_t kMaxCompanies = 256;

bool SharesWithAny(const LaneDescription& lane, const LaneDescription::Member& member) {
  return std::any_of(lane.members.begin(), lane.members.end(),
                     [&](const auto& other) { return ShareCachedTokens(other, member); });
}

}  // namespace

// --- Company

// Remembers how many requests had a prefix at a time.
void Scheduler::UpdateCompany(const SchedulerInput& input) {
  absl::flat_hash_map<uint64_t, int64_t> live;
  for (const RequestDescription& request : input.requests) {
    if (request.prefix != 0) ++live[request.prefix];
  }
  for (const auto& [prefix, count] : live) {
    if (count < 2 && !companies_.contains(prefix)) continue;
    Company& company = companies_[prefix];
    if (count >= 2) company.seen = input.now;
    company.size = std::max(company.size, count);
  }
  absl::erase_if(companies_, [&](const auto& entry) {
    return input.now - entry.second.seen > kCompanySeconds;
  });
  if (companies_.size() > kMaxCompanies) companies_.clear();
}

// Whether the request, which could begin now, waits for others that share its beginning. It has
// waited since the first of them was ready.
bool Scheduler::WaitsForCompany(const SchedulerInput& input, const RequestDescription& request) {
  const auto found = companies_.find(request.prefix);
  if (request.prefix == 0 || request.cached_tokens == 0 || found == companies_.end()) return false;
  Company& company = found->second;
  int64_t ready = 0;
  bool is_one_coming = false;
  for (const RequestDescription& other : input.requests) {
    if (other.prefix != request.prefix) continue;
    ready += other.phase == RequestPhase::kReady;
    is_one_coming |=
        other.phase == RequestPhase::kReserving || other.phase == RequestPhase::kWaiting;
  }
  if (company.gathers_since < 0) company.gathers_since = input.now;
  const double saved =
      costs_.Seconds({.cached = static_cast<double>(request.cached_tokens) * options_.num_layers});
  const double share = is_one_coming ? kGatherShareOfComing : kGatherShare;
  const double patience = std::min(share * saved, options_.inter_token_target);
  return ready < std::min<int64_t>(company.size, options_.max_batch) &&
         input.now - company.gathers_since < patience;
}

// --- Groups

// What a group may still take.
struct Scheduler::GroupInTheMaking {
  const SchedulerInput& input;
  LaneDescription& lane;
  bool is_last_lane;
  bool any_long;       // a long prompt waits for a lane
  bool is_closed;      // only those that share their beginning with a member may join
  int64_t places;      // of the batch
  int64_t tokens = 0;  // of the lane, that members take
  StepPlan::Group group = {};
};

// Whether the request may be read with those that are in the group. Some of its prompt is there
// already: joining is worth it if it makes the group longer by less than it saves, because then the
// first tokens of all come earlier on average than one after the other.
//
// The reach of its rows is left out of what it adds: prompts that were read alone have cached
// tokens and reach in one proportion, so the fit may take the one for the other, and what is saved
// would seem to be added.
bool Scheduler::MayShare(const GroupInTheMaking& making, const RequestDescription& request) const {
  const LaneDescription::Member member = MemberOf(request);
  if (making.places <= 0 || !SharesWithAny(making.lane, member)) return false;
  LaneDescription together = making.lane;
  together.members.push_back(member);
  if (LaneTokens(together.members) > making.lane.max_tokens) return false;
  const auto seconds = [this](const LaneDescription& lane) {
    Work work = WorkLeft(lane, options_.num_layers, options_.max_rows);
    work.pass_reach = 0;
    return costs_.Seconds(work);
  };
  return 2 * (seconds(together) - seconds(making.lane)) <= SecondsToRead(request);
}

bool Scheduler::MayJoin(const GroupInTheMaking& making, const RequestDescription& request) {
  const bool is_first = making.lane.members.empty();
  if (!is_first && MayShare(making, request)) return true;
  if (making.is_closed) return false;
  if (making.tokens + request.prompt_tokens > making.lane.max_tokens) return false;
  // A long prompt that waits has its lane for itself.
  if (!making.is_last_lane && making.any_long && IsShort(making.input, request)) return false;
  // One whose layers wait for the background has them for itself.
  if (!request.takes_in_order && !is_first) return false;
  if (is_first && WaitsForCompany(making.input, request)) return false;
  return making.places > 0 || (is_first && SecondsToRead(request) >= kPlaceAhead);
}

// Adds the request, unless the group would take too long then.
bool Scheduler::Join(const RequestDescription& request, GroupInTheMaking& making) {
  LaneDescription& lane = making.lane;
  const bool is_first = lane.members.empty();
  const bool shares = SharesWithAny(lane, MemberOf(request));
  lane.members.push_back(MemberOf(request));
  const double seconds = SecondsLeft(lane);
  const bool is_full =
      seconds > options_.inter_token_target || GroupRows(lane) > kGroupPasses * options_.max_rows;
  if (is_full && !is_first && !shares) {
    lane.members.pop_back();
    return false;
  }
  making.is_closed = making.is_closed || is_full || !request.takes_in_order;
  if (!request.takes_in_order) lane.layers_open = std::min<uint32_t>(lane.layers_open, 2);
  // Which rows they have in common is only known when the group has begun.
  if (shares) lane.layers_open = 0;
  making.group.members.push_back(request.id);
  making.tokens = LaneTokens(lane.members);
  if (seconds < kPlaceAhead || shares) --making.places;
  if (const auto found = companies_.find(request.prefix); found != companies_.end()) {
    found->second.gathers_since = -1;
  }
  return true;
}

void Scheduler::PlanGroups(const SchedulerInput& input, Order& order,
                           std::vector<LaneDescription>& lanes, StepPlan& plan) {
  UpdateCompany(input);
  const auto may_begin = [&](const RequestDescription& request) {
    if (request.phase == RequestPhase::kReady) return true;
    return !request.asks_store &&
           std::find(plan.admit.begin(), plan.admit.end(), request.id) != plan.admit.end();
  };
  const bool any_long = std::any_of(input.requests.begin(), input.requests.end(),
                                    [&](const RequestDescription& request) {
                                      return may_begin(request) && !IsShort(input, request);
                                    });
  int64_t places = PlacesLeft(input) - std::ssize(plan.resume);
  for (size_t i = lanes.size(); i-- > 0;) {
    LaneDescription& lane = lanes[i];
    if (!lane.is_free) continue;
    lane.members.clear();
    lane.runs.clear();
    lane.layer = 0;
    lane.next_row = 0;
    lane.layers_open = options_.num_layers;
    GroupInTheMaking making{.input = input,
                            .lane = lane,
                            .is_last_lane = i + 1 == lanes.size(),
                            .any_long = any_long,
                            .is_closed = false,
                            .places = places};
    making.group.lane = i;
    while (std::ssize(making.group.members) < options_.max_batch) {
      const RequestDescription* const request = order.Next(
          [&](const RequestDescription& one) { return may_begin(one) && MayJoin(making, one); });
      if (request == nullptr) break;
      if (!Join(*request, making)) {
        order.PutBack(*request, *this);
        making.is_closed = true;
        continue;
      }
      order.Charge(*request);
    }
    places = making.places;
    if (making.group.members.empty()) continue;
    lane.is_free = false;
    plan.begin.push_back(std::move(making.group));
  }
}

}  // namespace retroinfer
