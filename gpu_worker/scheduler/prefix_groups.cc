#include "gpu_worker/scheduler/prefix_groups.h"

#include <algorithm>

namespace retroinfer {
namespace {

// Longest wait for other prompts with the same cached prefix, as a share of the seconds that one
// shared read saves.
constexpr double kMaxGatherWaitShare = 0.1;
// The same while another request of the prefix group is about to become ready.
constexpr double kMaxGatherWaitShareOfComing = 0.3;
// A prefix group is expected to have several requests again for this long after it had some.
constexpr double kPrefixGroupSeconds = 10;
constexpr size_t kMaxPrefixGroups = 256;

}  // namespace

void PrefixGroups::Update(const SchedulerInput& input) {
  absl::flat_hash_map<uint64_t, int64_t> live;
  for (const RequestDescription& request : input.requests) {
    if (request.prefix != 0) ++live[request.prefix];
  }
  for (const auto& [prefix, count] : live) {
    if (count < 2 && !groups_.contains(prefix)) continue;
    Group& group = groups_[prefix];
    if (count >= 2) group.seen = input.now;
    group.size = std::max(group.size, count);
  }
  absl::erase_if(groups_, [&](const auto& entry) {
    return input.now - entry.second.seen > kPrefixGroupSeconds;
  });
  // Forgetting costs a shared read, no more: no need to choose which to forget.
  if (groups_.size() > kMaxPrefixGroups) groups_.clear();
}

bool PrefixGroups::WaitsForOthers(const SchedulerInput& input, const RequestDescription& request) {
  const auto found = groups_.find(request.prefix);
  if (request.prefix == 0 || request.cached_tokens == 0 || found == groups_.end()) return false;
  Group& group = found->second;
  int64_t ready = 0;
  bool is_one_coming = false;
  for (const RequestDescription& other : input.requests) {
    if (other.prefix != request.prefix) continue;
    ready += other.phase == RequestPhase::kReady;
    is_one_coming |=
        other.phase == RequestPhase::kReserving || other.phase == RequestPhase::kWaiting;
  }
  if (group.gathers_since < 0) group.gathers_since = input.now;
  const double saved = times_.costs().Seconds(
      {.cached = static_cast<double>(request.cached_tokens) * options_.num_layers});
  const double share = is_one_coming ? kMaxGatherWaitShareOfComing : kMaxGatherWaitShare;
  const double patience = std::min(share * saved, options_.inter_token_target);
  return ready < std::min<int64_t>(group.size, options_.max_batch) &&
         input.now - group.gathers_since < patience;
}

void PrefixGroups::EndWait(const RequestDescription& request) {
  if (const auto found = groups_.find(request.prefix); found != groups_.end()) {
    found->second.gathers_since = -1;
  }
}

}  // namespace retroinfer
