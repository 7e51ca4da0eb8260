// A sample of the slots says how old the youngest slot of the order is. A pass over all slots
// collects those of that age and more, which a counting sort puts in order: what costs most is to
// read each slot's stamp once.
#include "kv_store_service/admission/eviction_order.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/log/check.h"

namespace retroinfer::kvstore {
namespace {

constexpr uint32_t kExactAges = 256;  // those below have a bucket each
constexpr uint32_t kOfDoubling = 7;   // bits: buckets for ages from 2^n to 2^(n+1)
constexpr uint32_t kAhead = 16;       // candidates that are under way from memory
constexpr uint32_t kSampled = 16;     // one slot in so many, where there are many

uint32_t AgeOf(StepStamp stamp, StepStamp now) {
  const uint32_t age = now - stamp;
  return age < (1u << 31) ? age : 0;
}

}  // namespace

uint32_t EvictionOrder::BucketOf(uint32_t age) {
  if (age < kExactAges) return age;
  const auto exponent = static_cast<uint32_t>(std::bit_width(age)) - 1;
  const uint32_t part = (age >> (exponent - kOfDoubling)) & ((1u << kOfDoubling) - 1);
  return kExactAges + ((exponent - 8) << kOfDoubling) + part;
}

void EvictionOrder::Begin(StepStamp now, StepStamp asked_at, uint32_t count) {
  next_.now = now;
  next_.asked_at = asked_at;
  wanted_ = count;
  slot_ = 0;
  histogram_.assign(kBuckets, 0);
  found_.clear();
  pass_ = Pass::kSample;
}

uint32_t EvictionOrder::Continue(const PageTable& table, std::span<const StepStamp> stamps,
                                 const std::vector<bool>& in_flight, uint32_t max_slots) {
  RI_CHECK(is_begun() && stamps.size() == table.num_slots() && in_flight.size() == stamps.size());
  uint32_t looked_at = 0;
  while (is_begun() && looked_at < max_slots) {
    const uint32_t max = max_slots - looked_at;
    switch (pass_) {
      case Pass::kSample:
        looked_at += Sample(table, stamps, in_flight, max);
        break;
      case Pass::kCollect:
        looked_at += Collect(table, stamps, in_flight, max);
        break;
      case Pass::kSort:
        looked_at += Sort(max);
        break;
      case Pass::kNone:
        break;
    }
  }
  return looked_at;
}

uint32_t EvictionOrder::Sample(const PageTable& table, std::span<const StepStamp> stamps,
                               const std::vector<bool>& in_flight, uint32_t max_slots) {
  const uint32_t num_slots = table.num_slots();
  const uint32_t stride = num_slots < kExact ? 1 : kSampled;
  uint32_t looked_at = 0;
  for (; slot_ < num_slots && looked_at < max_slots; slot_ += stride, ++looked_at) {
    if (table.PageIn(slot_) == kNoPage || in_flight[slot_]) continue;
    ++histogram_[BucketOf(AgeOf(LastUse(table, stamps, slot_), next_.now))];
  }
  if (slot_ < num_slots) return looked_at;
  uint64_t older = 0;
  uint32_t bucket = kBuckets;
  while (bucket > 0 && older < wanted_) older += uint64_t{stride} * histogram_[--bucket];
  // Within a bucket of several ages all are collected.
  least_age_ = bucket < kExactAges ? bucket : 0;
  for (uint32_t age = kExactAges; bucket >= kExactAges && age != 0; age <<= 1) {
    if (BucketOf(age) > bucket) break;
    least_age_ = age;
  }
  histogram_.assign(kBuckets, 0);
  slot_ = 0;
  pass_ = Pass::kCollect;
  return looked_at;
}

uint32_t EvictionOrder::Collect(const PageTable& table, std::span<const StepStamp> stamps,
                                const std::vector<bool>& in_flight, uint32_t max_slots) {
  const SlotId begin = slot_;
  const SlotId end = begin + std::min(table.num_slots() - begin, max_slots);
  for (SlotId slot = begin; slot < end; ++slot) {
    const StepStamp stamp = LastUse(table, stamps, slot);
    const uint32_t age = AgeOf(stamp, next_.now);
    if (age < least_age_ || table.PageIn(slot) == kNoPage || in_flight[slot]) continue;
    found_.push_back({slot, stamp});
    ++histogram_[BucketOf(age)];
  }
  slot_ = end;
  if (slot_ == table.num_slots()) LayOut();
  return end - begin;
}

void EvictionOrder::LayOut() {
  uint32_t place = 0;
  for (uint32_t bucket = kBuckets; bucket-- > 0;) place += std::exchange(histogram_[bucket], place);
  if (next_.places.size() < found_.size()) next_.places.resize(found_.size());
  sorted_ = 0;
  pass_ = Pass::kSort;
}

uint32_t EvictionOrder::Sort(uint32_t max_slots) {
  const auto begin = sorted_;
  sorted_ = begin + std::min(static_cast<uint32_t>(found_.size()) - begin, max_slots);
  for (uint32_t i = begin; i < sorted_; ++i) {
    const Candidate& candidate = found_[i];
    next_.places[histogram_[BucketOf(AgeOf(candidate.stamp, next_.now))]++] = candidate;
  }
  if (sorted_ == found_.size()) Use();
  return sorted_ - begin;
}

void EvictionOrder::Use() {
  next_.size = std::min(static_cast<uint32_t>(found_.size()), wanted_);
  std::swap(current_, next_);
  num_made_ = current_.size;
  place_ = 0;
  pass_ = Pass::kNone;
}

std::optional<EvictionOrder::Candidate> EvictionOrder::Pop() {
  if (place_ == current_.size) return std::nullopt;
  return current_.places[place_++];
}

bool EvictionOrder::IsOutdated(const Candidate& candidate, const PageTable& table) const {
  const StepStamp changed = table.ChangedAt(candidate.slot);
  return IsAfter(changed, current_.asked_at) && changed != candidate.stamp;
}

std::optional<SlotId> EvictionOrder::Upcoming() const {
  if (num_left() <= kAhead) return std::nullopt;
  return current_.places[place_ + kAhead].slot;
}

void EvictionOrder::Clear() {
  pass_ = Pass::kNone;
  current_.size = place_ = num_made_ = 0;
}

}  // namespace retroinfer::kvstore
