// Which prompts are read together: several short prompts, one long prompt alone in its lane, and
// the prompts of a prefix group, whose common cached tokens are read once.
#include <algorithm>
#include <utility>

#include "gpu_worker/scheduler/lane_rows.h"
#include "gpu_worker/scheduler/request_order.h"
#include "gpu_worker/scheduler/scheduler.h"

namespace retroinfer {
namespace {

// Upper bound of a group's rows, in passes: the first token of a short prompt waits for all of
// them.
constexpr int64_t kGroupPasses = 2;
// Longest wait for other prompts with the same cached prefix, as a share of the seconds that one
// shared read saves.
constexpr double kMaxGatherWaitShare = 0.1;
// The same while another request of the prefix group is about to become ready.
constexpr double kMaxGatherWaitShareOfComing = 0.3;
// A prefix group is expected to have several requests again for this long after it had some.
constexpr double kPrefixGroupSeconds = 10;
constexpr size_t kMaxPrefixGroups = 256;

bool SharesWithAny(const LaneDescription& lane, const LaneDescription::Member& member) {
  return std::any_of(lane.members.begin(), lane.members.end(),
                     [&](const auto& other) { return ShareCachedTokens(other, member); });
}

}  // namespace

// --- Prefix groups

// Notes how many requests of each prefix group are live at a time.
void Scheduler::UpdatePrefixGroups(const SchedulerInput& input) {
  absl::flat_hash_map<uint64_t, int64_t> live;
  for (const RequestDescription& request : input.requests) {
    if (request.prefix != 0) ++live[request.prefix];
  }
  for (const auto& [prefix, count] : live) {
    if (count < 2 && !prefix_groups_.contains(prefix)) continue;
    PrefixGroup& group = prefix_groups_[prefix];
    if (count >= 2) group.seen = input.now;
    group.size = std::max(group.size, count);
  }
  absl::erase_if(prefix_groups_, [&](const auto& entry) {
    return input.now - entry.second.seen > kPrefixGroupSeconds;
  });
  // Forgetting costs a shared read, no more: no need to choose which to forget.
  if (prefix_groups_.size() > kMaxPrefixGroups) prefix_groups_.clear();
}

// Whether the request, which could begin now, waits for others of its prefix group. The wait began
// when the first request of the prefix group was ready, and is the same for all: requests that come
// later do not prolong it.
bool Scheduler::WaitsForPrefixGroup(const SchedulerInput& input,
                                    const RequestDescription& request) {
  const auto found = prefix_groups_.find(request.prefix);
  if (request.prefix == 0 || request.cached_tokens == 0 || found == prefix_groups_.end())
    return false;
  PrefixGroup& group = found->second;
  int64_t ready = 0;
  bool is_one_coming = false;
  for (const RequestDescription& other : input.requests) {
    if (other.prefix != request.prefix) continue;
    ready += other.phase == RequestPhase::kReady;
    is_one_coming |=
        other.phase == RequestPhase::kReserving || other.phase == RequestPhase::kWaiting;
  }
  if (group.gathers_since < 0) group.gathers_since = input.now;
  const double saved =
      costs_.Seconds({.cached = static_cast<double>(request.cached_tokens) * options_.num_layers});
  const double share = is_one_coming ? kMaxGatherWaitShareOfComing : kMaxGatherWaitShare;
  const double patience = std::min(share * saved, options_.inter_token_target);
  return ready < std::min<int64_t>(group.size, options_.max_batch) &&
         input.now - group.gathers_since < patience;
}

// --- Groups

// A group that is being chosen for a lane, and what it may still take.
struct Scheduler::GroupBuilder {
  const SchedulerInput& input;
  LaneDescription& lane;  // its members are the requests chosen so far
  bool is_last_lane;
  bool any_long;       // a long prompt waits for a lane
  bool is_closed;      // only prompts of a member's prefix group may join
  int64_t batch_rows;  // rows of the batch that are left for members
  int64_t tokens = 0;  // LaneTokens() of the members
  StepPlan::Group group = {};
};

// Whether the request may join the group because a member has the same cached prefix. Joining is
// worth it if the group becomes longer by less than half of what the prompt takes alone: then the
// first tokens of all members come earlier on average than one prompt after the other.
//
// The estimate leaves pass_reach out. Prompts that were read alone have cached tokens and reach in
// one proportion, so the regression may attribute the cost of one to the other, and what joining
// saves in cached tokens would seem to be added in reach.
bool Scheduler::MayShare(const GroupBuilder& builder, const RequestDescription& request) const {
  const LaneDescription::Member member = MemberOf(request);
  if (builder.batch_rows <= 0 || !SharesWithAny(builder.lane, member)) return false;
  LaneDescription together = builder.lane;
  together.members.push_back(member);
  if (LaneTokens(together.members) > builder.lane.max_tokens) return false;
  const auto seconds = [this](const LaneDescription& lane) {
    Work work = WorkLeft(lane, options_.num_layers, options_.max_rows);
    work.pass_reach = 0;
    return costs_.Seconds(work);
  };
  return 2 * (seconds(together) - seconds(builder.lane)) <= SecondsToRead(request);
}

bool Scheduler::MayJoin(const GroupBuilder& builder, const RequestDescription& request) {
  const bool is_first = builder.lane.members.empty();
  if (!is_first && MayShare(builder, request)) return true;
  if (builder.is_closed) return false;
  if (builder.tokens + request.prompt_tokens > builder.lane.max_tokens) return false;
  // While a long prompt waits, only it may begin in the long lane: a short prompt has its own lane.
  if (!builder.is_last_lane && builder.any_long && IsShort(builder.input, request)) return false;
  // A prompt whose layers wait for the background is read alone: others would wait with it.
  if (!request.takes_in_order && !is_first) return false;
  if (is_first && WaitsForPrefixGroup(builder.input, request)) return false;
  return builder.batch_rows > 0 || (is_first && SecondsToRead(request) >= kBatchRowAhead);
}

// Adds the request, unless the group would take too long then. Returns whether it did.
bool Scheduler::Join(const RequestDescription& request, GroupBuilder& builder) {
  LaneDescription& lane = builder.lane;
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
  builder.is_closed = builder.is_closed || is_full || !request.takes_in_order;
  if (!request.takes_in_order) lane.layers_open = std::min<uint32_t>(lane.layers_open, 2);
  // Which rows the members have in common is known when the group has begun: no pass before that.
  if (shares) lane.layers_open = 0;
  builder.group.members.push_back(request.id);
  builder.tokens = LaneTokens(lane.members);
  // A long prompt does not need its row soon.
  if (seconds < kBatchRowAhead || shares) --builder.batch_rows;
  if (const auto found = prefix_groups_.find(request.prefix); found != prefix_groups_.end()) {
    found->second.gathers_since = -1;
  }
  return true;
}

void Scheduler::PlanGroups(const SchedulerInput& input, Order& order,
                           std::vector<LaneDescription>& lanes, StepPlan& plan) {
  UpdatePrefixGroups(input);
  const auto may_begin = [&](const RequestDescription& request) {
    if (request.phase == RequestPhase::kReady) return true;
    return !request.asks_store &&
           std::find(plan.admit.begin(), plan.admit.end(), request.id) != plan.admit.end();
  };
  const bool any_long = std::any_of(input.requests.begin(), input.requests.end(),
                                    [&](const RequestDescription& request) {
                                      return may_begin(request) && !IsShort(input, request);
                                    });
  int64_t batch_rows = BatchRowsLeft(input) - std::ssize(plan.resume);
  for (size_t i = lanes.size(); i-- > 0;) {
    LaneDescription& lane = lanes[i];
    if (!lane.is_free) continue;
    lane.members.clear();
    lane.runs.clear();
    lane.layer = 0;
    lane.next_row = 0;
    lane.layers_open = options_.num_layers;
    GroupBuilder builder{.input = input,
                         .lane = lane,
                         .is_last_lane = i + 1 == lanes.size(),
                         .any_long = any_long,
                         .is_closed = false,
                         .batch_rows = batch_rows};
    builder.group.lane = i;
    while (std::ssize(builder.group.members) < options_.max_batch) {
      const RequestDescription* const request = order.Next(
          [&](const RequestDescription& one) { return may_begin(one) && MayJoin(builder, one); });
      if (request == nullptr) break;
      // The group is full. Requests that share a prefix with a member may still join.
      if (!Join(*request, builder)) {
        order.PutBack(*request, *this);
        builder.is_closed = true;
        continue;
      }
      order.Charge(*request);
    }
    batch_rows = builder.batch_rows;
    if (builder.group.members.empty()) continue;
    lane.is_free = false;
    plan.begin.push_back(std::move(builder.group));
  }
}

}  // namespace retroinfer
