// One block; bound by memory: reads 4 bytes a page.
#include <cstdint>

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/block_cache/block_cache_check.h"
#include "gpu_worker/ops/block_cache/cuda/block_cache_access.cuh"
#include "gpu_worker/ops/block_cache/cuda/release_pages.h"
#include "gpu_worker/ops/block_cache/cuda/resident_walk.cuh"

namespace retroinfer::cuda {
namespace {

__global__ void __launch_bounds__(kWalkThreads, 1)
    Release(const BlockCacheParams cache, PageId first_page, uint32_t num_pages, StepStamp step,
            PageId* next_page) {
  const LogPlace log = FindLogPlace(cache);
  const uint32_t num_free = *cache.num_free;
  const WalkEnd end =
      WalkIds(cache.page_slot, kNoSlot, first_page, first_page + num_pages, log.room,
              [&](PageId page, SlotId slot, uint64_t number) {
                cache.page_slot[page] = kNoSlot;
                cache.slot_page[slot] = kNoPage;
                cache.free_slots[num_free + number] = slot;
                WriteLogEntry(cache, log.head + number, LogKind::kRelease, page, slot, step);
              });
  PublishLog(cache, log.head + end.num_found);
  if (threadIdx.x != 0) return;
  *cache.num_free = num_free + end.num_found;
  cache.counters->releases += end.num_found;
  *next_page = end.next;
}

}  // namespace

absl::Status ReleasePages(CudaStream& stream, const ReleasePagesArgs& args) {
  RETURN_IF_ERROR(CheckReleasePages(args));
  Release<<<1, kWalkThreads, 0, stream.get()>>>(BlockCacheParams(args.cache, args.counters),
                                                args.first_page, args.num_pages, args.step,
                                                args.next_page);
  return CudaStatus(cudaGetLastError(), "release_pages");
}

}  // namespace retroinfer::cuda
