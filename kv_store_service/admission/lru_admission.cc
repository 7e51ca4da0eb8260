// Choose() is a radix selection on the 32-bit age, 16 bits at a time: the first pass finds the
// upper half of the age of the last slot to choose, the second pass its lower half, and the third
// collects all older slots and as many of that very age as are still wanted. Nothing is sorted, and
// memory does not grow with the number of slots.
#include "kv_store_service/admission/lru_admission.h"

#include <algorithm>
#include <cmath>

#include "common/log/check.h"

namespace retroinfer::kvstore {
namespace {

constexpr uint32_t kBuckets = 1u << 16;

uint32_t AgeOf(StepStamp stamp, StepStamp now) {
  const uint32_t age = now - stamp;
  return age < (1u << 31) ? age : 0;
}

// Finds the highest bucket such that the buckets above it hold fewer than `count` entries, and
// subtracts those from `count`. Returns kBuckets if all buckets together hold fewer.
uint32_t FindBucket(std::span<const uint32_t> histogram, uint32_t* count) {
  uint32_t left = *count;
  for (uint32_t bucket = kBuckets; bucket-- > 0;) {
    if (histogram[bucket] >= left) {
      *count = left;
      return bucket;
    }
    left -= histogram[bucket];
  }
  return kBuckets;
}

}  // namespace

LruAdmission::LruAdmission(uint32_t num_slots, Watermarks watermarks) : in_flight_(num_slots) {
  RI_CHECK(watermarks.low >= 0 && watermarks.low <= watermarks.high && watermarks.high <= 1);
  low_slots_ = static_cast<uint32_t>(std::ceil(watermarks.low * num_slots));
  high_slots_ = static_cast<uint32_t>(std::ceil(watermarks.high * num_slots));
}

uint32_t LruAdmission::NumToEvict(uint32_t free_slots) const {
  const uint64_t soon_free = uint64_t{free_slots} + num_in_flight_;
  return soon_free < low_slots_ ? static_cast<uint32_t>(high_slots_ - soon_free) : 0;
}

std::vector<SlotId> LruAdmission::Choose(const PageTable& table, std::span<const StepStamp> stamps,
                                         StepStamp now, uint32_t count) {
  RI_CHECK(stamps.size() == in_flight_.size() && table.num_slots() == in_flight_.size());
  std::vector<SlotId> chosen;
  if (count == 0) return chosen;
  const auto is_candidate = [&](SlotId slot) {
    return table.PageIn(slot) != kNoPage && !in_flight_[slot];
  };
  const auto num_slots = static_cast<SlotId>(stamps.size());

  histogram_.assign(kBuckets, 0);
  for (SlotId slot = 0; slot < num_slots; ++slot) {
    if (is_candidate(slot)) ++histogram_[AgeOf(stamps[slot], now) >> 16];
  }
  uint32_t ties = count;
  uint32_t limit = 0;  // age of the last slot to choose
  const uint32_t upper = FindBucket(histogram_, &ties);
  if (upper < kBuckets) {
    histogram_.assign(kBuckets, 0);
    for (SlotId slot = 0; slot < num_slots; ++slot) {
      const uint32_t age = AgeOf(stamps[slot], now);
      if (is_candidate(slot) && age >> 16 == upper) ++histogram_[age & (kBuckets - 1)];
    }
    // A peer may change stamps between the passes; then fewer are left here, and any will do.
    const uint32_t lower = FindBucket(histogram_, &ties);
    limit = upper << 16 | (lower < kBuckets ? lower : 0);
  }
  for (SlotId slot = 0; slot < num_slots && chosen.size() < count; ++slot) {
    if (!is_candidate(slot)) continue;
    const uint32_t age = AgeOf(stamps[slot], now);
    if (age < limit) continue;
    if (age == limit) {
      if (ties == 0) continue;
      --ties;
    }
    chosen.push_back(slot);
  }
  return chosen;
}

void LruAdmission::MarkInFlight(SlotId slot) {
  RI_CHECK(!in_flight_[slot]);
  in_flight_[slot] = true;
  ++num_in_flight_;
}

void LruAdmission::Answered(SlotId slot) {
  if (slot >= in_flight_.size() || !in_flight_[slot]) return;
  in_flight_[slot] = false;
  --num_in_flight_;
}

void LruAdmission::Reset() {
  std::fill(in_flight_.begin(), in_flight_.end(), false);
  num_in_flight_ = 0;
}

}  // namespace retroinfer::kvstore
