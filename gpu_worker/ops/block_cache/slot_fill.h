// New pages go into free slots while they are still in device memory, so that their first use needs
// no trip over the bus: slots are taken off the free list, a segment's pages are written to them as
// well as to the arena (write_segment.h), and once the segment is complete they are admitted.
//
// Between the two calls such a slot is neither free nor in the table or the log: nobody finds it.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/block_cache/block_cache_view.h"

namespace retroinfer {

// Written by kernels only.
struct SlotListHead {
  uint32_t num_slots = 0;  // on the list
  // What the threads of one AdmitSlots tell each other; zero before and after.
  uint32_t num_fresh = 0;     // pages that came into no other slot meanwhile
  uint32_t num_returned = 0;  // slots
  uint32_t num_finished = 0;  // thread blocks
  uint64_t log_head = 0;      // cursor and room of the log before the call
  uint64_t log_room = 0;
};

// Slots taken, in device memory.
struct SlotList {
  SlotListHead* head = nullptr;
  DeviceSpan<SlotId> slots;  // the first head->num_slots
};

// Where a writer of pages puts them besides the arena: page i into slot list.slots[i], for
// i < list.head->num_slots.
struct SlotFill {
  DeviceSpan<std::byte> slots;  // all slots of the cache. Empty: the arena only
  SlotList list;
};

// Takes up to `num_wanted` slots, as long as at least `num_kept` stay free.
struct TakeSlotsArgs {
  BlockCacheView cache;
  SlotList list;  // REQUIRES: room for num_wanted
  uint32_t num_wanted = 0;
  uint32_t num_kept = 0;
};

// Slot i of the list holds the bytes of page first_page + i, for i < num_pages: those pages are
// admitted, all other slots are free again, and the list is empty. A page that came into another
// slot meanwhile, and one for whose entry the log has no room, is not admitted. The log has the
// pages in any order.
struct AdmitSlotsArgs {
  BlockCacheView cache;
  BlockCacheCounters* counters = nullptr;
  StepStamp step = 0;
  SlotList list;
  PageId first_page = 0;
  uint32_t num_pages = 0;  // 0: nothing was written; all slots are given back
};

}  // namespace retroinfer
