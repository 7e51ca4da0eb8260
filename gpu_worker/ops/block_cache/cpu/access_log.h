// Appends to the access log (common/shm/data_plane_layout.h) on behalf of a kernel.
#pragma once

#include <atomic>
#include <cstdint>

#include "gpu_worker/ops/block_cache/block_cache_view.h"

namespace retroinfer::cpu {

// Threads: one; the kernels that write the log run one after the other.
// Owns:    nothing. Entries become visible to the store when Publish() is called.
class AccessLog {
 public:
  AccessLog(const BlockCacheView& cache, StepStamp step)
      : cache_(cache), step_(step), head_(cache.log_head->value.load(std::memory_order_relaxed)) {
    CountRoom();
  }

  // Entries that can be appended now. A store that writes nonsense into its cursor makes this 0,
  // never more than the capacity.
  uint64_t room() {
    if (room_ == 0) CountRoom();
    return room_;
  }

  // Whether `count` entries can be appended now.
  bool HasRoomFor(uint64_t count) {
    if (room_ < count) CountRoom();
    return room_ >= count;
  }

  // REQUIRES: room() > 0.
  void Append(LogKind kind, PageId page, SlotId slot) {
    cache_.log.device_data()[head_ & (cache_.log.size() - 1)] = {static_cast<uint32_t>(kind), page,
                                                                 slot, step_};
    ++head_;
    --room_;
  }

  void Publish() { cache_.log_head->value.store(head_, std::memory_order_release); }

 private:
  void CountRoom() {
    const uint64_t used = head_ - cache_.log_tail->value.load(std::memory_order_acquire);
    room_ = used <= cache_.log.size() ? cache_.log.size() - used : 0;
  }

  const BlockCacheView& cache_;
  const StepStamp step_;
  uint64_t head_;
  uint64_t room_ = 0;
};

// Puts `page` into `slot`. REQUIRES: the page is in no slot, the slot is free and off the stack.
inline void FillSlot(const BlockCacheView& cache, PageId page, SlotId slot, StepStamp step) {
  cache.page_slot.device_data()[page] = slot;
  cache.slot_page.device_data()[slot] = page;
  cache.slot_stamp.device_data()[slot] = step;
}

// Empties `slot`, which holds `page`, and pushes it on the stack of free slots.
inline void FreeSlot(const BlockCacheView& cache, PageId page, SlotId slot) {
  cache.page_slot.device_data()[page] = kNoSlot;
  cache.slot_page.device_data()[slot] = kNoPage;
  cache.free_slots.device_data()[(*cache.num_free)++] = slot;
}

}  // namespace retroinfer::cpu
