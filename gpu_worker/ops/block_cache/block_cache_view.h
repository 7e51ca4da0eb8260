// The state of the block cache in device memory: which page is in which slot, which slots are free,
// and the access log (wave buffer; protocol in data_plane_layout.h). What operations do to it is in
// their own headers.
#pragma once

#include <cstdint>

#include "common/shm/data_plane_layout.h"
#include "gpu_worker/device/device_span.h"
#include "gpu_worker/ops/block_cache/absent_pages_view.h"

namespace retroinfer {

// What changes from step to step, in device memory, so that a recorded step can be replayed.
// Written between two steps.
struct LookupControl {
  StepStamp step;           // that begins
  uint32_t is_closed;       // not 0: nothing may be admitted
  uint32_t any_absent = 0;  // not 0: pages may be absent (absent_pages_view.h)
};

// A page that a look-up did not find, for backends whose threads share the work. One of several
// misses of the same page in a call owns it: the one at the lowest place.
struct PageMiss {
  PageId page;
  uint32_t ref;    // place in the execution buffer
  uint32_t owner;  // place of the owner in the list
  uint32_t rank;   // among the owners; decides where the page goes. Of an owner only
};

// What the kernels of one look-up tell each other. Zero before the first call; admission leaves
// num_listed at zero.
struct LookupState {
  uint32_t num_listed;    // places of the list asked for so far; may exceed its size
  uint32_t num_misses;    // places of the list in use
  uint32_t num_admitted;  // owners with a rank below this get free slots
  uint32_t num_free;      // before the admissions
  uint64_t log_head;      // the same
};

inline constexpr size_t kMaxSlots = 0x7fffffff;

// Device state of the block cache; written by kernels only. Counters live in device memory. All
// addresses stay the same for the life of the cache.
struct BlockCacheView {
  size_t page_bytes = kPageBytes;          // of the KvFormat
  DeviceSpan<std::byte> slots;             // [num_slots] pages
  DeviceSpan<std::byte> transient;         // [num_transient] pages
  DeviceSpan<const std::byte> arena;       // [arena_pages] pages, mapped host memory
  DeviceSpan<SlotId> page_slot;            // [arena_pages], kNoSlot: a miss
  DeviceSpan<PageId> slot_page;            // [num_slots], kNoPage: free
  DeviceSpan<StepStamp> slot_stamp;        // [num_slots], step of the last use
  DeviceSpan<SlotId> free_slots;           // [num_slots], a stack
  uint32_t* num_free = nullptr;            // device; size of that stack
  const LookupControl* control = nullptr;  // device
  // Working memory of look-ups. Pages that the list has no room for are attended in the arena.
  DeviceSpan<PageMiss> misses;
  LookupState* lookup = nullptr;  // device
  // Access log, in mapped host memory.
  DeviceSpan<LogEntry> log;  // [capacity], a power of two
  RingCursor* log_head = nullptr;
  const RingCursor* log_tail = nullptr;
  AbsentPagesView absent;
};

// Sums since start, in device memory.
struct BlockCacheCounters {
  uint64_t hits;            // pages found in slots
  uint64_t misses;          // pages read from the arena
  uint64_t admissions;      // misses that took a slot
  uint64_t transients;      // misses that did not
  uint64_t evictions;       // requests applied
  uint64_t evictions_kept;  // requests refused
  uint64_t releases;        // slots freed because their segment ended
  uint64_t bad_requests;    // eviction requests with impossible ids, ignored
  uint64_t fills;           // pages admitted as they were written (slot_fill.h)
};

}  // namespace retroinfer
