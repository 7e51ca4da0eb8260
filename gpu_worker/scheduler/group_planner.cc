#include "gpu_worker/scheduler/group_planner.h"

#include <algorithm>
#include <utility>

#include "gpu_worker/scheduler/lane_rows.h"
#include "gpu_worker/scheduler/request_predicates.h"

namespace retroinfer {
namespace {

// Upper bound of a group's rows, in passes: the first token of a short prompt waits for all of
// them.
constexpr int64_t kGroupPasses = 2;

bool SharesWithAny(const LaneDescription& lane, const LaneDescription::Member& member) {
  return std::any_of(lane.members.begin(), lane.members.end(),
                     [&](const auto& other) { return ShareCachedTokens(other, member); });
}

}  // namespace

// A group that is being chosen for a lane, and what it may still take.
struct GroupPlanner::Builder {
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
bool GroupPlanner::MayShare(const Builder& builder, const RequestDescription& request) const {
  const LaneDescription::Member member = MemberOf(request);
  if (builder.batch_rows <= 0 || !SharesWithAny(builder.lane, member)) return false;
  LaneDescription together = builder.lane;
  together.members.push_back(member);
  if (LaneTokens(together.members) > builder.lane.max_tokens) return false;
  const auto seconds = [this](const LaneDescription& lane) {
    Work work = WorkLeft(lane, options_.num_layers, options_.max_rows);
    work.pass_reach = 0;
    return times_.costs().Seconds(work);
  };
  return 2 * (seconds(together) - seconds(builder.lane)) <= times_.SecondsToRead(request);
}

bool GroupPlanner::MayJoin(const Builder& builder, const RequestDescription& request) {
  const bool is_first = builder.lane.members.empty();
  if (!is_first && MayShare(builder, request)) return true;
  if (builder.is_closed) return false;
  if (builder.tokens + request.prompt_tokens > builder.lane.max_tokens) return false;
  // While a long prompt waits, only it may begin in the long lane: a short prompt has its own lane.
  if (!builder.is_last_lane && builder.any_long && IsShort(builder.input, request)) return false;
  // A prompt whose layers wait for the background is read alone: others would wait with it.
  if (!request.takes_in_order && !is_first) return false;
  if (is_first && prefix_groups_.WaitsForOthers(builder.input, request)) return false;
  return builder.batch_rows > 0 ||
         (is_first && times_.SecondsToRead(request) >= BatchRows::kAheadSeconds);
}

// Adds the request, unless the group would take too long then. Returns whether it did.
bool GroupPlanner::Join(const RequestDescription& request, Builder& builder) {
  LaneDescription& lane = builder.lane;
  const bool is_first = lane.members.empty();
  const bool shares = SharesWithAny(lane, MemberOf(request));
  lane.members.push_back(MemberOf(request));
  const double seconds = times_.SecondsLeft(lane);
  const bool is_full =
      seconds > options_.inter_token_target || GroupRows(lane) > kGroupPasses * options_.max_rows;
  if (is_full && !is_first && !shares) {
    lane.members.pop_back();
    return false;
  }
  builder.is_closed = builder.is_closed || is_full || !request.takes_in_order;
  if (!request.takes_in_order) lane.layers_open = std::min<uint32_t>(lane.layers_open, 2);
  // Which rows the members have in common is known when the group has begun: no pass before that.
  // Nor are the units of a sparse prompt, nor which heads are one.
  const LaneDescription::Member& last = lane.members.back();
  if (shares || last.is_sparse() || last.given_tokens > 0) lane.layers_open = 0;
  builder.group.members.push_back(request.id);
  builder.tokens = LaneTokens(lane.members);
  // A long prompt does not need its row soon.
  if (seconds < BatchRows::kAheadSeconds || shares) --builder.batch_rows;
  prefix_groups_.EndWait(request);
  return true;
}

void GroupPlanner::Plan(const SchedulerInput& input, RequestOrder& order,
                        std::vector<LaneDescription>& lanes, StepPlan& plan) {
  prefix_groups_.Update(input);
  const auto may_begin = [&](const RequestDescription& request) {
    if (request.phase == RequestPhase::kReady) return true;
    return !request.asks_store &&
           std::find(plan.admit.begin(), plan.admit.end(), request.id) != plan.admit.end();
  };
  const bool any_long = std::any_of(input.requests.begin(), input.requests.end(),
                                    [&](const RequestDescription& request) {
                                      return may_begin(request) && !IsShort(input, request);
                                    });
  int64_t batch_rows = rows_.NumFree(input) - std::ssize(plan.resume);
  for (size_t i = lanes.size(); i-- > 0;) {
    LaneDescription& lane = lanes[i];
    if (!lane.is_free) continue;
    lane.members.clear();
    lane.runs.clear();
    lane.layer = 0;
    lane.next_row = 0;
    lane.layers_open = options_.num_layers;
    Builder builder{.input = input,
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
        order.PutBack(*request);
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
