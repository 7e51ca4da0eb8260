#include "gpu_worker/ops/block_cache/cpu/slot_fill.h"

#include <algorithm>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/block_cache/cpu/access_log.h"
#include "gpu_worker/ops/block_cache/slot_fill_check.h"

namespace retroinfer::cpu {
namespace {

void Take(const TakeSlotsArgs& args) {
  const BlockCacheView& cache = args.cache;
  const uint32_t num_free = *cache.num_free;
  const uint32_t num_taken =
      std::min(args.num_wanted, num_free > args.num_kept ? num_free - args.num_kept : 0);
  for (uint32_t i = 0; i < num_taken; ++i) {
    args.list.slots.device_data()[i] = cache.free_slots.device_data()[num_free - 1 - i];
  }
  *cache.num_free = num_free - num_taken;
  *args.list.head = SlotListHead{.num_slots = num_taken};
}

void Admit(const AdmitSlotsArgs& args) {
  const BlockCacheView& cache = args.cache;
  AccessLog log(cache, args.step);
  const uint32_t num_slots = args.list.head->num_slots;
  // As for any admission: the release of every slot in use must fit behind the new entries. The
  // slots of the list count as in use already.
  const uint64_t num_used = cache.slot_page.size() - *cache.num_free;
  for (uint32_t i = 0; i < num_slots; ++i) {
    const SlotId slot = args.list.slots.device_data()[i];
    const PageId page = args.first_page + i;
    if (i < args.num_pages && cache.page_slot.device_data()[page] == kNoSlot &&
        log.HasRoomFor(num_used + 1)) {
      FillSlot(cache, page, slot, args.step);
      log.Append(LogKind::kAdmit, page, slot);
      ++args.counters->fills;
    } else {
      cache.free_slots.device_data()[(*cache.num_free)++] = slot;
    }
  }
  log.Publish();
  args.list.head->num_slots = 0;
}

}  // namespace

absl::Status TakeSlots(CpuStream& stream, const TakeSlotsArgs& args) {
  RETURN_IF_ERROR(CheckTakeSlots(args));
  return stream.Launch([args](ThreadPool&) { Take(args); });
}

absl::Status AdmitSlots(CpuStream& stream, const AdmitSlotsArgs& args) {
  RETURN_IF_ERROR(CheckAdmitSlots(args));
  return stream.Launch([args](ThreadPool&) { Admit(args); });
}

}  // namespace retroinfer::cpu
