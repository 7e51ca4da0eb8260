// Decides which pages leave the block cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/kv/kv_geometry.h"
#include "kv_store_service/mapping/page_table.h"

namespace retroinfer::kvstore {

// Free slots below `low` start an eviction that aims at `high`, as shares of all slots.
struct Watermarks {
  double low = 0.05;
  double high = 0.10;
};

// Least recently used by last-use stamps. Pure logic: no clock, no shared memory, no thread.
//
// A chosen slot stays *in flight* until the worker's answer is replayed, and is not chosen again.
class LruAdmission {
 public:
  // REQUIRES: 0 <= low <= high <= 1.
  LruAdmission(uint32_t num_slots, Watermarks watermarks);

  // Returns how many more slots should be evicted when `free_slots` are free.
  uint32_t NumToEvict(uint32_t free_slots) const;

  // Returns the `count` least recently used slots (fewer if there are fewer) of those that are in
  // use and not in flight, in ascending order of slots. Of equally old ones the lowest slots.
  //
  // `stamps`: [num_slots] step of the last use, modulo 2^32; `now`: the current step. A stamp up to
  // 2^31 - 1 steps behind `now` is that old; all others count as used now.
  // Cost: three passes over the slots; allocates 512 KiB once.
  std::vector<SlotId> Choose(const PageTable& table, std::span<const StepStamp> stamps,
                             StepStamp now, uint32_t count);

  void MarkInFlight(SlotId slot);
  // Notes the answer for a slot. Slots that are not in flight are ignored.
  void Answered(SlotId slot);
  // Forgets everything in flight: the cache was reset.
  void Reset();

  uint32_t num_in_flight() const { return num_in_flight_; }
  uint32_t low_slots() const { return low_slots_; }
  uint32_t high_slots() const { return high_slots_; }

 private:
  uint32_t low_slots_;
  uint32_t high_slots_;
  std::vector<bool> in_flight_;
  uint32_t num_in_flight_ = 0;
  std::vector<uint32_t> histogram_;
};

}  // namespace retroinfer::kvstore
