// Decides which pages leave the block cache, how many and when.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/kv/kv_geometry.h"
#include "kv_store_service/admission/eviction_order.h"
#include "kv_store_service/mapping/page_table.h"

namespace retroinfer::kvstore {

// How many slots are kept free, as shares of all slots: what steps take lies between them.
struct Watermarks {
  double low = 0.02;   // at least
  double high = 0.10;  // at most
};

// Least recently used by last-use stamps, as many as steps take. Pure logic: no clock, no shared
// memory, no thread.
//
// A step finds enough free slots if as many are free at its beginning as it will miss pages. So the
// aim is twice what the fullest of the last steps took; where a step took all there
// were, that grows from step to step until enough are free. What is asked for is evicted from step
// to step, in the order of an EvictionOrder; a chosen slot stays *in flight* until the worker's
// answer is replayed, and is not chosen again. Of those in flight a share will be kept, since they
// were used meanwhile: that is learned, too. Where it is large newer stamps are wanted in each
// step, though the order is still in use: they tell which of its candidates need not be asked for.
class LruAdmission {
 public:
  // REQUIRES: 0 <= low <= high <= 1.
  LruAdmission(uint32_t num_slots, Watermarks watermarks);

  // Notes that a page took a slot in a step.
  void Admitted(StepStamp step);
  // Returns how many slots should be free when a step begins.
  uint32_t NumWantedFree() const;
  // Returns how many more slots should be evicted when `free_slots` are free.
  uint32_t NumToEvict(uint32_t free_slots) const;

  // Whether a new order should be made soon: few candidates are left, or they are old, and slots
  // get short.
  bool WantsOrder(uint32_t free_slots, StepStamp now) const;
  // Begins one, as EvictionOrder::Begin(); ContinueOrder() takes it further.
  void BeginOrder(StepStamp now, StepStamp asked_at);
  bool is_ordering() const { return order_.is_begun(); }
  // As EvictionOrder::Continue().
  uint32_t ContinueOrder(const PageTable& table, std::span<const StepStamp> stamps,
                         uint32_t max_slots);

  // Whether newer stamps would pay, though no order is due: slots are short, and many of those that
  // were chosen had been used since their stamps were copied.
  bool WantsStamps(uint32_t free_slots) const;

  // Chooses the slot in use that was not used for longest and is not in flight, and notes it as in
  // flight. Nothing if no candidate is left: a new order is needed. Passes over what `stamps`,
  // which may be newer than the order, know as used since.
  std::optional<EvictionOrder::Candidate> Choose(const PageTable& table,
                                                 std::span<const StepStamp> stamps);
  // Notes the answer for a slot. Slots that are not in flight are ignored.
  void Answered(SlotId slot, bool evicted);
  // Forgets everything but what steps take: the cache was reset.
  void Reset();

  uint32_t num_in_flight() const { return num_in_flight_; }

 private:
  uint32_t demand() const;
  double SoonFree(uint32_t free_slots) const;

  uint32_t low_slots_;
  uint32_t high_slots_;
  EvictionOrder order_;
  std::vector<bool> in_flight_;
  uint32_t num_in_flight_ = 0;
  double evicted_share_ = 1;  // of the last answers

  StepStamp step_ = 0;          // the last one that took slots
  uint32_t taken_in_step_ = 0;  // by that
  uint32_t taken_before_ = 0;   // by the fullest of those before, less and less
};

}  // namespace retroinfer::kvstore
