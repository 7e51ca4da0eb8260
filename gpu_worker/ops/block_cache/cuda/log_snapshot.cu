// One block; bound by memory: reads 4 bytes a slot.
#include <cstdint>

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/block_cache/block_cache_check.h"
#include "gpu_worker/ops/block_cache/cuda/block_cache_access.cuh"
#include "gpu_worker/ops/block_cache/cuda/log_snapshot.h"
#include "gpu_worker/ops/block_cache/cuda/resident_walk.cuh"

namespace retroinfer::cuda {
namespace {

__global__ void __launch_bounds__(kWalkThreads, 1)
    Snapshot(const BlockCacheParams cache, StepStamp step, SlotId* next_slot) {
  const LogPlace log = FindLogPlace(cache);
  const SlotId first = min(*next_slot, cache.num_slots);
  const WalkEnd end =
      WalkIds(cache.slot_page, kNoPage, first, cache.num_slots, log.room,
              [&](SlotId slot, PageId page, uint64_t number) {
                WriteLogEntry(cache, log.head + number, LogKind::kAdmit, page, slot, step);
              });
  PublishLog(cache, log.head + end.num_found);
  if (threadIdx.x == 0) *next_slot = end.next;
}

}  // namespace

absl::Status LogSnapshot(CudaStream& stream, const LogSnapshotArgs& args) {
  RETURN_IF_ERROR(CheckLogSnapshot(args));
  Snapshot<<<1, kWalkThreads, 0, stream.get()>>>(BlockCacheParams(args.cache, nullptr), args.step,
                                                 args.next_slot);
  return CudaStatus(cudaGetLastError(), "log_snapshot");
}

}  // namespace retroinfer::cuda
