// One block, 1024 requests at a time; the log has them in their order. Bound by latency.
#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/block_cache_check.h"
#include "gpu_worker/ops/cuda/apply_evictions.h"
#include "gpu_worker/ops/cuda/block_cache_access.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 1024;

__global__ void __launch_bounds__(kThreads, 1)
    Apply(const BlockCacheParams cache, const EvictionRequest* requests, uint32_t num_requests,
          StepStamp step) {
  using Scan = cub::BlockScan<uint32_t, kThreads>;
  __shared__ Scan::TempStorage scan;
  const LogPlace log = FindLogPlace(cache);
  const uint32_t num_free = *cache.num_free;
  uint32_t num_possible = 0, num_logged = 0, num_evicted = 0;  // so far
  for (uint32_t base = 0; base < num_requests; base += kThreads) {
    const bool is_request = base + threadIdx.x < num_requests;
    const EvictionRequest request = is_request ? requests[base + threadIdx.x] : EvictionRequest{};
    const bool is_possible =
        is_request && request.slot < cache.num_slots && request.page < cache.num_arena_pages;
    uint32_t place = 0, all = 0;
    Scan(scan).ExclusiveSum(is_possible ? 1u : 0u, place, all);
    const uint32_t entry = num_possible + place;
    const bool is_logged = is_possible && entry < log.room;
    num_possible += all;
    num_logged = static_cast<uint32_t>(min(uint64_t{num_possible}, log.room));
    // Compare and evict: the store has chosen from what it last saw. Of equal requests one wins.
    const bool is_evicted =
        is_logged && cache.slot_stamp[request.slot] == request.stamp_seen &&
        atomicCAS(cache.slot_page + request.slot, request.page, kNoPage) == request.page;
    __syncthreads();  // `scan` is used again
    Scan(scan).ExclusiveSum(is_evicted ? 1u : 0u, place, all);
    if (is_evicted) {
      cache.page_slot[request.page] = kNoSlot;
      cache.free_slots[num_free + num_evicted + place] = request.slot;
    }
    num_evicted += all;
    if (is_logged) {
      WriteLogEntry(cache, log.head + entry, is_evicted ? LogKind::kEvict : LogKind::kKeep,
                    request.page, request.slot, step);
    }
    __syncthreads();
  }
  PublishLog(cache, log.head + num_logged);
  if (threadIdx.x != 0) return;
  *cache.num_free = num_free + num_evicted;
  cache.counters->evictions += num_evicted;
  cache.counters->evictions_kept += num_logged - num_evicted;
  cache.counters->bad_requests += num_requests - num_logged;
}

}  // namespace

absl::Status ApplyEvictions(CudaStream& stream, const ApplyEvictionsArgs& args) {
  RETURN_IF_ERROR(CheckApplyEvictions(args));
  RETURN_IF_ERROR(CheckArg(args.requests.size() <= UINT32_MAX, "apply_evictions",
                           "needs less than 2^32 requests"));
  if (args.requests.empty()) return absl::OkStatus();
  Apply<<<1, kThreads, 0, stream.get()>>>(BlockCacheParams(args.cache, args.counters),
                                          args.requests.device_data(),
                                          static_cast<uint32_t>(args.requests.size()), args.step);
  return CudaStatus(cudaGetLastError(), "apply_evictions");
}

}  // namespace retroinfer::cuda
