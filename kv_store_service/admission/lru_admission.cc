#include "kv_store_service/admission/lru_admission.h"

#include <algorithm>
#include <cmath>

#include "common/log/check.h"

namespace retroinfer::kvstore {
namespace {

constexpr uint32_t kForgotten = 16;  // one part in so many of what a step took, with each step
constexpr uint32_t kStepsRemembered = 256;
constexpr double kAnswersRemembered = 4096;
constexpr double kLeastEvictedShare = 0.4;
constexpr double kFewKept = 0.9;  // of the last answers, evictions: no newer stamps are needed
// An order is for so many steps, and for no fewer slots than these.
constexpr uint64_t kStepsOfOrder = 8;
constexpr uint32_t kLeastOfOrder = 1u << 16;
constexpr uint32_t kOneInOrdered = 4;
// A new one is due when so many slots were chosen: the deeper an order is used, the more of it was
// used meanwhile, and a new one takes some steps to come.
constexpr uint32_t kOneInChosen = 8;
constexpr uint32_t kOldOrder = 256;  // steps

}  // namespace

LruAdmission::LruAdmission(uint32_t num_slots, Watermarks watermarks) : in_flight_(num_slots) {
  RI_CHECK(watermarks.low >= 0 && watermarks.low <= watermarks.high && watermarks.high <= 1);
  low_slots_ = static_cast<uint32_t>(std::ceil(watermarks.low * num_slots));
  high_slots_ = static_cast<uint32_t>(std::ceil(watermarks.high * num_slots));
}

void LruAdmission::Admitted(StepStamp step) {
  if (step != step_) {
    const uint32_t steps = std::min(step - step_, kStepsRemembered);
    for (uint32_t i = 0; i < steps && taken_before_ > 0; ++i) {
      taken_before_ -= (taken_before_ + kForgotten - 1) / kForgotten;
    }
    taken_before_ = std::max(taken_before_, taken_in_step_);
    taken_in_step_ = 0;
    step_ = step;
  }
  ++taken_in_step_;
}

uint32_t LruAdmission::demand() const { return std::max(taken_before_, taken_in_step_); }

uint32_t LruAdmission::NumWantedFree() const {
  const uint64_t wanted = 2 * uint64_t{demand()};
  return static_cast<uint32_t>(std::clamp<uint64_t>(wanted, low_slots_, high_slots_));
}

double LruAdmission::SoonFree(uint32_t free_slots) const {
  return free_slots + evicted_share_ * num_in_flight_;
}

uint32_t LruAdmission::NumToEvict(uint32_t free_slots) const {
  const double missing = NumWantedFree() - SoonFree(free_slots);
  return missing <= 0 ? 0 : static_cast<uint32_t>(std::ceil(missing / evicted_share_));
}

bool LruAdmission::WantsOrder(uint32_t free_slots, StepStamp now) const {
  if (order_.is_begun() || SoonFree(free_slots) >= 2.0 * NumWantedFree()) return false;
  const uint32_t chosen = order_.num_made() - order_.num_left();
  return order_.num_left() <= order_.num_made() / 2 || chosen > in_flight_.size() / kOneInChosen ||
         now - order_.made_at() > kOldOrder;
}

void LruAdmission::BeginOrder(StepStamp now, StepStamp asked_at) {
  const auto num_slots = static_cast<uint32_t>(in_flight_.size());
  const uint64_t wanted =
      std::max<uint64_t>({kStepsOfOrder * demand(), num_slots / kOneInOrdered, kLeastOfOrder});
  order_.Begin(now, asked_at, static_cast<uint32_t>(std::min<uint64_t>(wanted, num_slots)));
}

uint32_t LruAdmission::ContinueOrder(const PageTable& table, std::span<const StepStamp> stamps,
                                     uint32_t max_slots) {
  return order_.Continue(table, stamps, in_flight_, max_slots);
}

bool LruAdmission::WantsStamps(uint32_t free_slots) const {
  return evicted_share_ < kFewKept && SoonFree(free_slots) < 2.0 * NumWantedFree();
}

std::optional<EvictionOrder::Candidate> LruAdmission::Choose(const PageTable& table,
                                                             std::span<const StepStamp> stamps) {
  while (const auto candidate = order_.Pop()) {
    if (const auto upcoming = order_.Upcoming()) {
      table.Prefetch(*upcoming);
      __builtin_prefetch(&stamps[*upcoming]);
    }
    const SlotId slot = candidate->slot;
    if (EvictionOrder::IsAfter(stamps[slot], candidate->stamp)) continue;
    if (table.PageIn(slot) == kNoPage || in_flight_[slot]) continue;
    if (order_.IsOutdated(*candidate, table)) continue;
    in_flight_[slot] = true;
    ++num_in_flight_;
    return candidate;
  }
  return std::nullopt;
}

void LruAdmission::Answered(SlotId slot, bool evicted) {
  if (slot >= in_flight_.size() || !in_flight_[slot]) return;
  in_flight_[slot] = false;
  --num_in_flight_;
  evicted_share_ += ((evicted ? 1 : 0) - evicted_share_) / kAnswersRemembered;
  evicted_share_ = std::max(evicted_share_, kLeastEvictedShare);
}

void LruAdmission::Reset() {
  std::fill(in_flight_.begin(), in_flight_.end(), false);
  num_in_flight_ = 0;
  order_.Clear();
}

}  // namespace retroinfer::kvstore
