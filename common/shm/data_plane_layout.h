// Byte layout of the data-plane memfd, which one worker and the store share besides the arena: two
// single-producer single-consumer rings and the last-use stamps. Little-endian. The store makes and
// formats it when a worker attaches; a worker hands the one it has to a store that was restarted,
// which takes it over as it is.
//
//   OFFSET            SIZE                 DESCRIPTION
//   0                 576                  DataPlaneControl: DataPlaneHeader (constant) and, each
//                                          on a cache line of its own, the cursors of both rings,
//                                          StampControl, the worker's step and arena_taken
//   log_offset        16 * log_capacity    access log: LogEntry ring, worker -> store
//   requests_offset   16 * req_capacity    eviction requests: EvictionRequest ring, store -> worker
//   stamps_offset     4 * num_slots        last-use stamp of every slot, copied out by the worker
//
// Protocol:
// * The log, in order, is the state of the block cache: the store's table is its replay. An entry
//   is visible once `head` has been stored (release) past it. The worker admits a page only while
//   the log has room for that and for the release of every resident page; else misses are
//   transient.
// * Cursors only grow (64 bit, entry number = cursor % capacity), so a restarted consumer sees
//   exactly where it stands.
// * The store asks for stamps by incrementing `requested`; the worker copies all stamps between two
//   steps and then stores as `published` what `requested` was before that (release). The store may
//   ask again before that.
// * A reader never trusts: page and slot ids are checked against the header's limits, cursors
//   against head - tail <= capacity.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/kv/kv_geometry.h"

namespace retroinfer {

inline constexpr uint64_t kDataPlaneMagic = 0x314e4c50'4f525452;  // "RTROPLN1"
inline constexpr uint32_t kDataPlaneVersion = 1;

enum class LogKind : uint32_t {
  kReset = 1,    // the block cache is empty from here on; a snapshot of kAdmit entries may follow
  kAdmit = 2,    // `page` now lives in `slot`
  kEvict = 3,    // an eviction request was applied: `page` left `slot`, which is free
  kKeep = 4,     // an eviction request was refused: the slot was used since, or holds another page
  kRelease = 5,  // the page's segment ended: `page` left `slot`, which is free
};

struct LogEntry {
  uint32_t kind;  // LogKind
  PageId page;
  SlotId slot;
  StepStamp step;  // of the decode step that wrote the entry
};
static_assert(sizeof(LogEntry) == 16 && std::is_trivially_copyable_v<LogEntry>);

struct EvictionRequest {
  SlotId slot;
  PageId page;           // that the store believes to be in the slot
  StepStamp stamp_seen;  // the slot's stamp when it was chosen; a newer one refuses the request
  uint32_t reserved;     // zero
};
static_assert(sizeof(EvictionRequest) == 16 && std::is_trivially_copyable_v<EvictionRequest>);

struct alignas(64) RingCursor {
  std::atomic<uint64_t> value;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(RingCursor) == 64);

struct StampControl {
  RingCursor requested;  // written by the store
  RingCursor published;  // written by the worker
};

struct DataPlaneHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t num_slots;
  uint32_t log_capacity;      // entries, a power of two
  uint32_t request_capacity;  // entries, a power of two
  uint64_t log_offset;
  uint64_t requests_offset;
  uint64_t stamps_offset;
  uint64_t total_bytes;
  uint64_t arena_pages;
};
static_assert(sizeof(DataPlaneHeader) == 64 && std::is_trivially_copyable_v<DataPlaneHeader>);

struct DataPlaneControl {
  DataPlaneHeader header;   // offset 0
  RingCursor log_head;      // 64:  written by the worker
  RingCursor log_tail;      // 128: written by the store
  RingCursor request_head;  // 192: written by the store
  RingCursor request_tail;  // 256: written by the worker
  StampControl stamps;      // 320
  RingCursor worker_step;   // 448: number of the step last begun, written by the worker
  // 512: not 0 once the store has given the arena to another worker; written by the store, before
  // that one can write to it. What the owner of this plane reads in the arena afterwards may be
  // anything, for ever.
  RingCursor arena_taken;
};
static_assert(sizeof(DataPlaneControl) == 576 && offsetof(DataPlaneControl, stamps) == 320);
static_assert(std::is_standard_layout_v<DataPlaneControl>);

// Returns the header for the given sizes; offsets are multiples of 4096.
constexpr DataPlaneHeader MakeDataPlaneHeader(uint32_t num_slots, uint32_t log_capacity,
                                              uint32_t request_capacity, uint64_t arena_pages) {
  const auto align = [](uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; };
  DataPlaneHeader header{};
  header.magic = kDataPlaneMagic;
  header.version = kDataPlaneVersion;
  header.num_slots = num_slots;
  header.log_capacity = log_capacity;
  header.request_capacity = request_capacity;
  header.log_offset = align(sizeof(DataPlaneControl));
  header.requests_offset = align(header.log_offset + uint64_t{log_capacity} * sizeof(LogEntry));
  header.stamps_offset =
      align(header.requests_offset + uint64_t{request_capacity} * sizeof(EvictionRequest));
  header.total_bytes = align(header.stamps_offset + uint64_t{num_slots} * sizeof(StepStamp));
  header.arena_pages = arena_pages;
  return header;
}

}  // namespace retroinfer
