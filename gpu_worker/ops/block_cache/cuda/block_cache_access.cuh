// The block cache as kernels see it, and the access log (protocol in
// common/shm/data_plane_layout.h).
#pragma once

#include <cstdint>

#include "gpu_worker/ops/block_cache/block_cache_view.h"

namespace retroinfer::cuda {

// BlockCacheView with addresses that a kernel may follow.
struct BlockCacheParams {
  std::byte* slots;
  std::byte* transient;
  const std::byte* arena;
  SlotId* page_slot;
  PageId* slot_page;
  StepStamp* slot_stamp;
  SlotId* free_slots;
  uint32_t* num_free;
  const LookupControl* control;
  PageMiss* misses;
  LookupState* lookup;
  LogEntry* log;
  uint64_t* log_head;
  const uint64_t* log_tail;
  BlockCacheCounters* counters;
  AbsentWord* absent_words;
  uint32_t* absent_rows;
  PageId* asked;
  uint32_t* num_asked;
  uint32_t max_asked;
  uint32_t num_slots;
  uint32_t num_transient;
  uint32_t num_arena_pages;
  uint32_t max_misses;
  uint64_t log_capacity;

  BlockCacheParams(const BlockCacheView& view, BlockCacheCounters* all_counters)
      : slots(view.slots.device_data()),
        transient(view.transient.device_data()),
        arena(view.arena.device_data()),
        page_slot(view.page_slot.device_data()),
        slot_page(view.slot_page.device_data()),
        slot_stamp(view.slot_stamp.device_data()),
        free_slots(view.free_slots.device_data()),
        num_free(view.num_free),
        control(view.control),
        misses(view.misses.device_data()),
        lookup(view.lookup),
        log(view.log.device_data()),
        log_head(reinterpret_cast<uint64_t*>(view.log_head)),
        log_tail(reinterpret_cast<const uint64_t*>(view.log_tail)),
        counters(all_counters),
        absent_words(view.absent.words.device_data()),
        absent_rows(view.absent.rows.device_data()),
        asked(view.absent.asked.device_data()),
        num_asked(view.absent.num_asked),
        max_asked(static_cast<uint32_t>(view.absent.asked.size())),
        num_slots(static_cast<uint32_t>(view.slot_page.size())),
        num_transient(static_cast<uint32_t>(view.transient.size() / kPageBytes)),
        num_arena_pages(static_cast<uint32_t>(view.page_slot.size())),
        max_misses(static_cast<uint32_t>(view.misses.size())),
        log_capacity(view.log.size()) {}
};

// Reads a cursor of the data plane, which lies in host memory.
__device__ inline uint64_t LoadCursor(const uint64_t* cursor) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];\n" : "=l"(value) : "l"(cursor) : "memory");
  return value;
}

// Entries that can be appended at `head`. A store that writes nonsense into its cursor makes this
// 0, never more than the capacity.
__device__ inline uint64_t LogRoom(const BlockCacheParams& cache, uint64_t head, uint64_t tail) {
  const uint64_t used = head - tail;
  return used <= cache.log_capacity ? cache.log_capacity - used : 0;
}

__device__ inline void WriteLogEntry(const BlockCacheParams& cache, uint64_t position, LogKind kind,
                                     PageId page, SlotId slot, StepStamp step) {
  *reinterpret_cast<uint4*>(cache.log + (position & (cache.log_capacity - 1))) =
      uint4{static_cast<uint32_t>(kind), page, slot, step};
}

// Where one block may append, and how much.
struct LogPlace {
  uint64_t head;
  uint64_t room;
};

// Called by a whole thread block.
__device__ inline LogPlace FindLogPlace(const BlockCacheParams& cache) {
  __shared__ LogPlace place;
  if (threadIdx.x == 0) {
    place.head = LoadCursor(cache.log_head);
    place.room = LogRoom(cache, place.head, LoadCursor(cache.log_tail));
  }
  __syncthreads();
  return place;
}

// Makes all entries up to `head` visible to the store. Called by a whole thread block, which wrote
// them.
__device__ inline void PublishLog(const BlockCacheParams& cache, uint64_t head) {
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("st.release.sys.global.u64 [%0], %1;\n" ::"l"(cache.log_head), "l"(head)
                 : "memory");
  }
}

}  // namespace retroinfer::cuda
