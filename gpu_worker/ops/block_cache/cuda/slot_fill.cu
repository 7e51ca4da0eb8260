// Taking is bound by memory (8 bytes a slot). Admitting writes 16 bytes a page over the bus, for
// the log, and is bound by that; a few blocks keep it full.
#include <algorithm>
#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/block_cache/cuda/block_cache_access.cuh"
#include "gpu_worker/ops/block_cache/cuda/slot_fill.h"
#include "gpu_worker/ops/block_cache/slot_fill_check.h"
#include "gpu_worker/ops/cuda/launch.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kAdmitBlocks = 16;

// Copies; what changes is written when all blocks have read it, by TakeEnd.
__global__ void __launch_bounds__(kThreads)
    Take(const BlockCacheParams cache, SlotId* slots, uint32_t num_wanted, uint32_t num_kept) {
  const uint32_t num_free = *cache.num_free;
  const uint32_t num_taken = min(num_wanted, num_free > num_kept ? num_free - num_kept : 0);
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < num_taken; i += gridDim.x * kThreads) {
    slots[i] = cache.free_slots[num_free - 1 - i];
  }
}

__global__ void TakeEnd(uint32_t* num_free, SlotListHead* head, uint32_t num_wanted,
                        uint32_t num_kept) {
  const uint32_t before = *num_free;
  const uint32_t num_taken = min(num_wanted, before > num_kept ? before - num_kept : 0);
  *num_free = before - num_taken;
  *head = SlotListHead{.num_slots = num_taken};
}

// Places for the threads of a block that want one, from a counter in device memory. Called by the
// whole block.
__device__ uint32_t TakePlaces(uint32_t* counter, bool wants) {
  using Scan = cub::BlockScan<uint32_t, kThreads>;
  __shared__ Scan::TempStorage scan;
  __shared__ uint32_t base;
  uint32_t before = 0, all = 0;
  Scan(scan).ExclusiveSum(wants ? 1u : 0u, before, all);
  if (threadIdx.x == 0) base = all == 0 ? 0 : atomicAdd(counter, all);
  __syncthreads();
  const uint32_t place = base + before;
  __syncthreads();  // `scan` and `base` are used again
  return place;
}

// Each page of the list that is in no slot yet takes a place in the log, in the order in which
// threads come; slots without one go back. *num_free stays as it is until the last block is done.
__global__ void __launch_bounds__(kThreads)
    AdmitAll(const BlockCacheParams cache, SlotListHead* list, const SlotId* slots,
             PageId first_page, uint32_t num_pages, StepStamp step) {
  SlotListHead& head = *list;
  const uint32_t num_slots = head.num_slots;
  const uint32_t num_free = *cache.num_free;
  const uint64_t log_head = head.log_head, log_room = head.log_room;
  // As for any admission: the release of every slot in use must fit behind the new entries. The
  // slots of the list count as in use already.
  const uint64_t num_used = cache.num_slots - num_free;
  const uint64_t limit = log_room > num_used ? log_room - num_used : 0;
  for (uint32_t base = blockIdx.x * kThreads; base < num_slots; base += gridDim.x * kThreads) {
    const uint32_t i = base + threadIdx.x;
    const bool is_listed = i < num_slots;
    const SlotId slot = is_listed ? slots[i] : kNoSlot;
    const PageId page = first_page + i;
    const bool is_fresh = is_listed && i < num_pages && cache.page_slot[page] == kNoSlot;
    const uint32_t entry = TakePlaces(&head.num_fresh, is_fresh);
    const bool is_admitted = is_fresh && entry < limit;
    const uint32_t returned = TakePlaces(&head.num_returned, is_listed && !is_admitted);
    if (is_admitted) {
      cache.page_slot[page] = slot;
      cache.slot_page[slot] = page;
      cache.slot_stamp[slot] = step;
      WriteLogEntry(cache, log_head + entry, LogKind::kAdmit, page, slot, step);
    } else if (is_listed) {
      cache.free_slots[num_free + returned] = slot;
    }
  }
  __shared__ bool is_last;
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(&head.num_finished, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!is_last) return;
  const uint32_t num_fresh = __ldcg(&head.num_fresh);
  const auto num_admitted = static_cast<uint32_t>(min(uint64_t{num_fresh}, limit));
  PublishLog(cache, log_head + num_admitted);
  if (threadIdx.x != 0) return;
  *cache.num_free = num_free + (num_slots - num_admitted);
  cache.counters->fills += num_admitted;
  head = SlotListHead{};
}

// One block reads the cursors, which are as far away as the host.
__global__ void FindPlace(const BlockCacheParams cache, SlotListHead* head) {
  const LogPlace log = FindLogPlace(cache);
  if (threadIdx.x != 0) return;
  head->log_head = log.head;
  head->log_room = log.room;
}

}  // namespace

absl::Status TakeSlots(CudaStream& stream, const TakeSlotsArgs& args) {
  RETURN_IF_ERROR(CheckTakeSlots(args));
  const BlockCacheParams cache(args.cache, nullptr);
  const auto blocks = static_cast<uint32_t>(
      std::clamp<int64_t>(DivideUp(args.num_wanted, int64_t{8} * kThreads), 1, 64));
  Take<<<blocks, kThreads, 0, stream.get()>>>(cache, args.list.slots.device_data(), args.num_wanted,
                                              args.num_kept);
  RETURN_IF_ERROR(LaunchStatus("launching take_slots"));
  TakeEnd<<<1, 1, 0, stream.get()>>>(cache.num_free, args.list.head, args.num_wanted,
                                     args.num_kept);
  return LaunchStatus("launching take_slots' end");
}

absl::Status AdmitSlots(CudaStream& stream, const AdmitSlotsArgs& args) {
  RETURN_IF_ERROR(CheckAdmitSlots(args));
  const BlockCacheParams cache(args.cache, args.counters);
  FindPlace<<<1, 32, 0, stream.get()>>>(cache, args.list.head);
  RETURN_IF_ERROR(LaunchStatus("launching admit_slots' look at the log"));
  AdmitAll<<<kAdmitBlocks, kThreads, 0, stream.get()>>>(cache, args.list.head,
                                                        args.list.slots.device_data(),
                                                        args.first_page, args.num_pages, args.step);
  return LaunchStatus("launching admit_slots");
}

}  // namespace retroinfer::cuda
