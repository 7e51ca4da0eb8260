// Checks of the arguments of slot_fill.h's operations, shared by the backends.
#pragma once

#include "absl/status/status.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/block_cache/block_cache_check.h"
#include "gpu_worker/ops/block_cache/slot_fill.h"

namespace retroinfer {

inline absl::Status CheckTakeSlots(const TakeSlotsArgs& args) {
  constexpr char kOp[] = "take_slots";
  RETURN_IF_ERROR(CheckBlockCache(args.cache, kOp));
  return CheckArg(args.list.head != nullptr && args.list.slots.size() >= args.num_wanted, kOp,
                  "needs a list with room for the slots wanted");
}

inline absl::Status CheckAdmitSlots(const AdmitSlotsArgs& args) {
  constexpr char kOp[] = "admit_slots";
  RETURN_IF_ERROR(CheckBlockCache(args.cache, kOp));
  RETURN_IF_ERROR(CheckArg(args.counters != nullptr && args.list.head != nullptr, kOp,
                           "needs counters and a list"));
  return CheckArg(size_t{args.first_page} + args.num_pages <= args.cache.page_slot.size(), kOp,
                  "needs pages of the arena");
}

}  // namespace retroinfer
