// The block cache on the device: finds the pages of retrieved clusters in slots, admits missing
// pages into free slots, and keeps the access log (wave buffer; protocol in data_plane_layout.h).
//
// A page that is not in a slot is admitted into a free slot, if there is one and the log has room.
// The execution buffer says where its bytes are: in a slot, in a transient slot that holds until
// the next call, or in the arena itself. A backend chooses: attention may read the arena over the
// bus while it computes, and what was admitted is copied behind it.
#pragma once

#include <cstdint>

#include "common/shm/data_plane_layout.h"
#include "gpu_worker/ops/decode_attention.h"
#include "gpu_worker/ops/meta_pool.h"

namespace retroinfer {

// What changes from step to step, in device memory, so that a recorded step can be replayed.
// Written between two steps.
struct LookupControl {
  StepStamp step;      // that begins
  uint32_t is_closed;  // not 0: nothing may be admitted
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

// A look-up is two calls. After PageLookup the execution buffer can be attended. AdmitPages then
// gives slots to pages that were missed: when it is done, and not before, they lie in them, table
// and log name them, and the counters have the look-up. It is called once after each PageLookup,
// behind it on the same or another stream, before the next call of any operation on the cache;
// attention over the execution buffer may run at the same time.
struct PageLookupArgs {
  BlockCacheView cache;
  BlockCacheCounters* counters = nullptr;  // device
  MetaPoolView pool;
  uint32_t layer = 0;
  DeviceSpan<const MetaIndexView> indexes;  // [batch]
  int32_t batch = 0;
  int32_t num_kv_heads = 0;
  DeviceSpan<const int32_t> retrieved;      // [batch, kv_heads, max_retrieved] cluster numbers
  DeviceSpan<const int32_t> num_retrieved;  // [batch, kv_heads]
  int64_t max_retrieved = 0;
  // Execution buffer. REQUIRES: max_pages suffices for every cluster chosen.
  int64_t max_pages = 0;
  DeviceSpan<PageRef> pages;      // [batch, kv_heads, max_pages]
  DeviceSpan<int32_t> num_pages;  // [batch, kv_heads]
};

struct AdmitPagesArgs {
  BlockCacheView cache;
  BlockCacheCounters* counters = nullptr;  // device
};

// Applies eviction requests between two steps: a slot whose page or stamp changed since is kept.
struct ApplyEvictionsArgs {
  BlockCacheView cache;
  BlockCacheCounters* counters = nullptr;
  StepStamp step = 0;
  DeviceSpan<const EvictionRequest> requests;  // copied out of the ring; hostile until checked.
                                               // REQUIRES: the log has room for as many entries
};

// Frees the slots of pages [first_page, first_page + num_pages): their segment ended. Pages are
// examined in order until the log is full; *next_page (device) receives the first one not examined.
struct ReleasePagesArgs {
  BlockCacheView cache;
  BlockCacheCounters* counters = nullptr;
  StepStamp step = 0;
  PageId first_page = 0;
  uint32_t num_pages = 0;
  PageId* next_page = nullptr;
};

// Writes kAdmit entries for the resident pages of slots [*next_slot, num_slots) until the log is
// full, and advances *next_slot (device): the snapshot after a kReset, for a store that has
// restarted.
struct LogSnapshotArgs {
  BlockCacheView cache;
  StepStamp step = 0;
  SlotId* next_slot = nullptr;
};

}  // namespace retroinfer
