// What the block cache needs between two steps, and what is done about it (BlockCache::Tend). Pure
// logic: no device, no shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace retroinfer {

// What a look at the cache shows.
struct CacheState {
  bool is_busy = true;  // what was begun last is still under way on the device
  bool wants_snapshot = false;
  bool is_snapshot_running = false;
  uint32_t num_slots = 0;
  size_t log_capacity = 0;      // entries
  size_t log_free_entries = 0;  // the store frees entries at any time, the cache takes them
  // Slots of each fill that has ended and is to be admitted, in the order of their ends.
  std::vector<uint32_t> fills;
  // Pages of each range that is to be released and is not examined yet, in order; the first of them
  // (kMaxReleases).
  std::vector<uint32_t> releases;
  size_t eviction_requests = 0;  // that wait to be applied
  bool wants_stamps = false;     // the store has asked for them

  friend bool operator==(const CacheState&, const CacheState&) = default;
};

// What is done, in this order. Nothing of it waits for the device.
struct CacheUpkeep {
  enum class Snapshot {
    kNone,
    kBegin,     // from the first slot on
    kContinue,  // from where the last round has come to
  };
  Snapshot snapshot = Snapshot::kNone;
  uint32_t fills = 0;              // ended fills that are admitted, the oldest first
  std::vector<uint32_t> releases;  // pages that are examined, of each of the oldest ranges
  uint32_t evictions = 0;          // the store's requests that are applied, the oldest first
  bool stamps = false;             // are published

  bool empty() const {
    return snapshot == Snapshot::kNone && fills == 0 && releases.empty() && evictions == 0 &&
           !stamps;
  }
  friend bool operator==(const CacheUpkeep&, const CacheUpkeep&) = default;
};

// Ranges that are released in one round.
inline constexpr size_t kMaxReleases = 64;
// Requests that are applied in one round: above the misses of a step of many long sequences, since
// in the long run as many pages must go as come.
inline constexpr size_t kMaxEvictions = 1u << 19;

// What to do about it. Rules:
// * While a snapshot runs, which describes the slots one after the other, nothing else changes the
//   table.
// * A fill is admitted before any later release, so that a released extent has no page in a slot.
// * The log keeps room for the release of every page in a slot, so that sequences can end also
//   while nobody reads it.
CacheUpkeep PlanUpkeep(const CacheState& state);

}  // namespace retroinfer
