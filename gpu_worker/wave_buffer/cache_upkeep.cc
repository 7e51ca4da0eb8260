#include "gpu_worker/wave_buffer/cache_upkeep.h"

#include <algorithm>

namespace retroinfer {
namespace {

constexpr uint32_t kMaxPagesPerFills = 1u << 20;     // admitted in one round
constexpr uint32_t kMaxPagesPerReleases = 1u << 20;  // examined in one round

// A snapshot takes an entry for each page in a slot, whose release takes another one: it begins
// when both fit, or half of a log that is too small for that is free. Until then the new store
// reads what is there and ignores it.
bool HasRoomForSnapshot(const CacheState& state) {
  const size_t wanted = 2 * size_t{state.num_slots} + 1;
  return state.log_free_entries >=
         std::max<size_t>(1, wanted <= state.log_capacity ? wanted : state.log_capacity / 2);
}

uint32_t PlanFills(const CacheState& state) {
  uint32_t num_fills = 0;
  uint64_t num_slots = 0;
  for (const uint32_t slots : state.fills) {
    num_slots += slots;
    if (num_fills > 0 && num_slots > kMaxPagesPerFills) break;
    ++num_fills;
  }
  return num_fills;
}

std::vector<uint32_t> PlanReleases(const CacheState& state) {
  std::vector<uint32_t> releases;
  uint32_t budget = kMaxPagesPerReleases;
  for (const uint32_t pages : state.releases) {
    if (budget == 0 || releases.size() == kMaxReleases) break;
    releases.push_back(std::min(budget, pages));
    budget -= releases.back();
  }
  return releases;
}

// A request that is refused takes an entry of the log and frees nothing.
uint32_t PlanEvictions(const CacheState& state) {
  const size_t for_releases = std::min<size_t>(state.num_slots, state.log_capacity / 2);
  if (state.log_free_entries <= for_releases) return 0;
  return static_cast<uint32_t>(
      std::min({state.log_free_entries - for_releases, state.eviction_requests, kMaxEvictions}));
}

}  // namespace

CacheUpkeep PlanUpkeep(const CacheState& state) {
  CacheUpkeep plan;
  if (state.is_busy) return plan;
  if (state.wants_snapshot && HasRoomForSnapshot(state)) {
    plan.snapshot = CacheUpkeep::Snapshot::kBegin;
    return plan;
  }
  if (state.is_snapshot_running) {
    // The rest of one that is to begin anew would be read by nobody.
    if (!state.wants_snapshot) plan.snapshot = CacheUpkeep::Snapshot::kContinue;
    return plan;
  }
  plan.fills = PlanFills(state);
  if (plan.fills == state.fills.size()) plan.releases = PlanReleases(state);
  // How many entries the others leave in the log is known when they are done.
  if (plan.fills == 0 && plan.releases.empty()) plan.evictions = PlanEvictions(state);
  plan.stamps = state.wants_stamps;
  return plan;
}

}  // namespace retroinfer
