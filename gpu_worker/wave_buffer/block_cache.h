// The worker's side of the wave buffer: the block cache in device memory and its half of the data
// plane (protocol in common/shm/data_plane_layout.h).
//
// Between two steps the cache is tended, as PlanUpkeep() says: the store's
// eviction requests are applied, slots of ended segments freed, pages admitted that were written to
// slots with their segment, last-use stamps published when asked, and the cache replayed to a store
// that has restarted. None of that waits for the store: with a dead or stopped one the log fills up
// and misses become transient.
//
// Threads: the engine's; RequestSnapshot() on any thread.
// Owns:    slots, transient slots, page table, stamps, free list and counters. The arena and the
//          data plane belong to mappings that outlive the cache.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shm/data_plane.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/memory_need.h"
#include "gpu_worker/ops/block_cache/block_cache_ops.h"
#include "gpu_worker/wave_buffer/absent_pages.h"
#include "gpu_worker/wave_buffer/cache_upkeep.h"

namespace retroinfer {

// Sums since start and present state, for metrics.
struct BlockCacheStats {
  BlockCacheCounters counters{};
  uint32_t num_slots = 0;
  uint32_t num_used_slots = 0;
  uint64_t snapshots = 0;         // for restarted stores, completed
  uint64_t ring_errors = 0;       // impossible cursors of the request ring
  uint64_t num_counts = 0;        // copies of the device's counts that were finished
  uint64_t pages_to_release = 0;  // of ended segments, still to be examined
  bool is_snapshot_running = false;
};

class BlockCache {
 public:
  struct Sizes {
    uint32_t num_slots = 0;  // as in the data plane's header
    uint32_t num_transient = 0;
    size_t page_bytes = kPageBytes;  // of the KvFormat
  };

  // The log should hold at least 2 * num_slots entries: a page is admitted only while the release
  // of all resident ones would fit, so a shorter log leaves slots empty.
  //
  // `arena` holds data_plane.arena_pages() pages; `data_plane_memory` has been formatted by the
  // store. Both are mapped for the device until the cache is destroyed.
  static absl::StatusOr<std::unique_ptr<BlockCache>> Create(Device& device, BlockCacheOps& ops,
                                                            Stream& stream, const Sizes& sizes,
                                                            std::span<std::byte> arena,
                                                            std::span<std::byte> data_plane_memory);
  static MemoryNeed MemoryOf(const Sizes& sizes, uint64_t arena_pages);
  // What a slot adds to that, at most: its page, and its entries of the tables.
  static size_t SlotBytes(size_t page_bytes);
  ~BlockCache();

  // Looks at what is under way, whose results are taken if it is done. Waits for nothing.
  //
  // REQUIRES: the look-ups of all steps so far are done: the last step's tokens have been read.
  // Other work of the stream (a prefill) may still run.
  absl::Status Settle();
  // Enqueues what PlanUpkeep() says of the cache as it is now. Waits for nothing. If this fails,
  // the next call does what this one had not come to.
  //
  // REQUIRES: as Settle(); no step was begun since then.
  absl::Status Tend();
  // Begins the next step.
  absl::Status BeginStep();

  // What PageLookup works on: the same in every step. While a snapshot runs nothing is admitted.
  BlockCacheView view() const;
  BlockCacheCounters* counters() const;  // device
  // The arena as the device sees it.
  DeviceSpan<std::byte> device_arena() const { return device_arena_; }
  // Pages that look-ups do not find yet.
  AbsentPages& absent() { return *absent_; }
  StepStamp step() const { return static_cast<StepStamp>(step_); }

  // Frees the slots of pages [first_page, first_page + num_pages), whose segment has ended, over
  // the next steps. Until ReleaseDone(ticket) their extent must not be given to anyone else.
  using ReleaseTicket = uint64_t;
  ReleaseTicket Release(PageId first_page, uint32_t num_pages);
  bool ReleaseDone(ReleaseTicket ticket) const { return ticket <= num_released_; }

  // Takes free slots for the pages of a segment that is about to be written, between two steps.
  // Some slots stay free, so fewer than `num_pages` may come, or none: the rest of the pages goes
  // to the arena alone. Returns kNoFill if there is no point in trying.
  using FillTicket = int32_t;
  static constexpr FillTicket kNoFill = -1;
  absl::StatusOr<FillTicket> BeginFill(uint32_t num_pages);
  // For WriteSegment on a stream that waits for the compute stream first. Of kNoFill: nothing.
  SlotFill fill(FillTicket ticket) const;
  // Ends a fill, for FillDone(): pages [first_page, first_page + num_pages) have been written,
  // whole, and are admitted over the next steps, before any later Release(). 0 pages: the slots are
  // given back. REQUIRES: nothing that writes to the slots is still under way.
  using EndedFill = uint64_t;
  EndedFill EndFill(FillTicket ticket, PageId first_page, uint32_t num_pages);
  // Whether its slots are in the table or free again.
  bool FillDone(EndedFill ended) const { return ended <= num_fills_done_; }

  // Replays the cache through the log, kReset first, from the next step on: a store has restarted.
  void RequestSnapshot() { snapshot_requested_.store(true, std::memory_order_release); }

  // Does not wait for the device: where that is behind, what it counts is as of the last call.
  absl::StatusOr<BlockCacheStats> Stats();
  // The same as of now. Waits until the device has passed what was enqueued: at once behind a step
  // whose results are on the host.
  absl::StatusOr<BlockCacheStats> StatsNow();

 private:
  struct Range {
    PageId next_page;
    PageId end;
  };

  BlockCache(Device& device, BlockCacheOps& ops, Stream& stream, const Sizes& sizes,
             DataPlane plane, std::span<std::byte> arena, std::span<std::byte> data_plane_memory);

  struct Allocation {
    DeviceBuffer BlockCache::*buffer;
    size_t bytes;
  };
  static std::vector<Allocation> Allocations(const Sizes& sizes, uint64_t arena_pages);
  absl::Status Allocate();
  absl::Status Clear();
  void Finish();
  absl::Status Record();
  void Describe(CacheState& state) const;
  absl::Status CarryOut(const CacheUpkeep& upkeep);
  absl::Status Snapshot(CacheUpkeep::Snapshot snapshot);
  absl::Status AdmitFills(uint32_t num_fills);
  absl::Status ReleaseRanges(std::span<const uint32_t> num_pages);
  absl::Status Evict(uint32_t num_requests);
  absl::Status PublishStamps();
  // Tells the kernels the step and whether pages may be admitted, where that has changed.
  absl::Status WriteControl();
  absl::Status ReadCursors(size_t count);
  absl::Status FetchCounts();
  BlockCacheStats StatsOf(bool have_come);

  Device& device_;
  BlockCacheOps& ops_;
  Stream& stream_;
  const Sizes sizes_;
  mutable DataPlane plane_;  // a view; reading its rings changes nothing of the cache
  const std::span<std::byte> arena_;
  const std::span<std::byte> data_plane_memory_;
  DeviceSpan<std::byte> device_arena_;
  DeviceSpan<std::byte> device_plane_;

  DeviceBuffer slots_;
  DeviceBuffer transient_;
  DeviceBuffer page_slot_;
  DeviceBuffer slot_page_;
  DeviceBuffer stamps_;
  DeviceBuffer free_slots_;
  DeviceBuffer num_free_;
  DeviceBuffer control_;  // LookupControl
  DeviceBuffer misses_;   // working memory of look-ups
  DeviceBuffer lookup_;
  DeviceBuffer counters_;
  DeviceBuffer lists_;     // of slots taken, each behind its head
  DeviceBuffer requests_;  // eviction requests, copied out of the ring
  DeviceBuffer cursors_;   // [kMaxReleases]: where releases, or a snapshot, have come to
  std::optional<AbsentPages> absent_;  // set by Allocate()

  // Host images of these; unchanged while a copy may be under way.
  HostBuffer host_control_;
  HostBuffer host_cursors_;  // [kMaxReleases], and where a snapshot goes on
  HostBuffer host_counts_;   // Counts

  struct Counts {
    BlockCacheCounters counters;
    uint32_t num_free;
  };
  Counts counts_{};  // as of the last copy that is done
  bool are_counts_under_way_ = false;
  uint64_t num_counts_ = 0;  // copies that are done
  std::unique_ptr<Event> counted_;

  // Under way on the device; `is_recorded_` once task_done_ stands behind it.
  CacheUpkeep under_way_;
  CacheState state_;  // of the last Tend(): its lists keep their memory
  bool is_recorded_ = false;
  std::unique_ptr<Event> task_done_;
  uint64_t stamps_requested_ = 0;  // what the stamps that are under way answer

  uint64_t step_ = 0;
  std::atomic<bool> snapshot_requested_ = false;
  bool is_snapshot_running_ = false;
  SlotId snapshot_next_slot_ = 0;
  // Fills that are under way, by place in lists_ (in SlotListHeads), and those to be admitted.
  struct Fill {
    size_t num_places = 0;
    uint32_t max_slots = 0;
    PageId first_page = 0;
    uint32_t num_pages = 0;
  };
  SlotList ListOf(FillTicket ticket, const Fill& fill) const;
  absl::btree_map<FillTicket, Fill> fills_;
  std::deque<FillTicket> ended_fills_;
  uint64_t num_fills_ended_ = 0;  // since start
  uint64_t num_fills_done_ = 0;   // of those

  std::deque<Range> releases_;
  uint64_t num_queued_ = 0;    // releases, since start
  uint64_t num_released_ = 0;  // of those, done
  uint64_t num_snapshots_ = 0;
  uint64_t num_ring_errors_ = 0;
};

}  // namespace retroinfer
