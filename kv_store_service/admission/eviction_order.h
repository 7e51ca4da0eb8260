// The slots of the block cache that were not used for longest, the oldest first: whom to evict
// next.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/kv/kv_geometry.h"
#include "kv_store_service/mapping/page_table.h"

namespace retroinfer::kvstore {

// An order is made from last-use stamps of one moment, and used for many steps: a slot that is used
// meanwhile only becomes younger than the order says, which the worker sees when it is to evict it.
// So the oldest that is left is the right one as long as it is not used, however old the order is.
//
// A new order is made in parts, beside the use of the last one. Pure logic: no clock, no thread.
//
// Owns: up to 24 bytes for each slot in an order.
class EvictionOrder {
 public:
  struct Candidate {
    SlotId slot;
    StepStamp stamp;  // of its last use, when the order was made
  };

  // Begins a new order of the `count` slots that were not used for longest (fewer if there are
  // fewer). `now`: the current step; `asked_at`: the step in which the stamps were asked for, which
  // they are not older than. Of many slots (kExact and more) a few may be missing at the order's
  // younger end: where it ends is judged from a sample.
  void Begin(StepStamp now, StepStamp asked_at, uint32_t count);
  bool is_begun() const { return pass_ != Pass::kNone; }
  // Takes it further by about as much work as looking at `max_slots` places of the stamps; returns
  // at how many it has looked. When it has passed all, the new order takes the place of the last.
  //
  // Slots that are free or in flight when they are looked at are left out. A slot whose page came
  // after `asked_at` has that step as its last use: its stamp may be of the page before. A stamp up
  // to 2^31 - 1 steps behind `now` is that old; all others count as used
  // now. Ages up to 256 are ordered exactly, others within 1 %; of equally old ones the lowest
  // slots come first.
  //
  // `stamps`: [table.num_slots()] step of the last use, modulo 2^32. They may change between calls,
  // as hostile workers may do: then slots are missing, nothing else.
  // REQUIRES: is_begun(); all of one size, the same in all calls.
  uint32_t Continue(const PageTable& table, std::span<const StepStamp> stamps,
                    const std::vector<bool>& in_flight, uint32_t max_slots);

  // Takes the oldest one that is left, if any. It may be in flight, free, or have another page by
  // now (IsOutdated).
  std::optional<Candidate> Pop();
  bool IsOutdated(const Candidate& candidate, const PageTable& table) const;
  // A slot that Pop() will return soon, for prefetching.
  std::optional<SlotId> Upcoming() const;
  uint32_t num_left() const { return current_.size - place_; }
  uint32_t num_made() const { return num_made_; }  // of the order in use
  StepStamp made_at() const { return current_.now; }

  // Forgets all.
  void Clear();

  static constexpr uint32_t kExact = 1u << 16;
  // By age, the youngest first.
  static constexpr uint32_t kBuckets = 256 + 23 * 128;
  static uint32_t BucketOf(uint32_t age);
  // Whether `a` is a later step than `b`: up to 2^31 - 1 steps.
  static bool IsAfter(StepStamp a, StepStamp b) { return a - b - 1 < (1u << 31) - 1; }

 private:
  enum class Pass { kNone, kSample, kCollect, kSort };
  struct Order {
    StepStamp now = 0;
    StepStamp asked_at = 0;
    std::vector<Candidate> places;  // the oldest first; [size] of them count
    uint32_t size = 0;
  };

  StepStamp LastUse(const PageTable& table, std::span<const StepStamp> stamps, SlotId slot) const {
    const StepStamp changed = table.ChangedAt(slot);
    return IsAfter(changed, next_.asked_at) ? changed : stamps[slot];
  }
  uint32_t Sample(const PageTable& table, std::span<const StepStamp> stamps,
                  const std::vector<bool>& in_flight, uint32_t max_slots);
  uint32_t Collect(const PageTable& table, std::span<const StepStamp> stamps,
                   const std::vector<bool>& in_flight, uint32_t max_slots);
  void LayOut();
  uint32_t Sort(uint32_t max_slots);
  void Use();

  Order current_;
  uint32_t place_ = 0;  // that Pop() takes next
  uint32_t num_made_ = 0;

  Pass pass_ = Pass::kNone;
  Order next_;
  uint32_t wanted_ = 0;
  uint32_t least_age_ = 0;           // of those that are collected
  SlotId slot_ = 0;                  // to be looked at next
  std::vector<Candidate> found_;     // in the order of slots
  uint32_t sorted_ = 0;              // of these
  std::vector<uint32_t> histogram_;  // by bucket; then where the next of a bucket goes
};

}  // namespace retroinfer::kvstore
