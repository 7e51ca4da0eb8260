// One block, 4,096 requests at a time; the log has them in their order. Bound by latency, so a
// thread has several requests under way.
#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/block_cache/block_cache_check.h"
#include "gpu_worker/ops/block_cache/cuda/apply_evictions.h"
#include "gpu_worker/ops/block_cache/cuda/block_cache_access.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr uint32_t kItems = 4;  // requests of a thread, one after the other in the list

__global__ void __launch_bounds__(kThreads, 1)
    Apply(const BlockCacheParams cache, const EvictionRequest* requests, uint32_t num_requests,
          StepStamp step) {
  using Scan = cub::BlockScan<uint32_t, kThreads>;
  __shared__ Scan::TempStorage scan;
  const LogPlace log = FindLogPlace(cache);
  const uint32_t num_free = *cache.num_free;
  uint32_t num_possible = 0, num_logged = 0, num_evicted = 0;  // so far
  for (uint32_t base = 0; base < num_requests; base += kThreads * kItems) {
    EvictionRequest request[kItems];
    bool is_possible[kItems];
    uint32_t possible_here = 0;
#pragma unroll
    for (uint32_t i = 0; i < kItems; ++i) {
      const uint32_t index = base + threadIdx.x * kItems + i;
      request[i] = index < num_requests ? requests[index] : EvictionRequest{};
      is_possible[i] = index < num_requests && request[i].slot < cache.num_slots &&
                       request[i].page < cache.num_arena_pages;
      possible_here += is_possible[i] ? 1 : 0;
    }
    uint32_t place = 0, all = 0;
    Scan(scan).ExclusiveSum(possible_here, place, all);
    uint32_t entry = num_possible + place;
    num_possible += all;
    num_logged = static_cast<uint32_t>(min(uint64_t{num_possible}, log.room));
    bool is_evicted[kItems];
    uint32_t evicted_here = 0;
#pragma unroll
    for (uint32_t i = 0; i < kItems; ++i) {
      const bool is_logged = is_possible[i] && entry < log.room;
      // Compare and evict: the store has chosen from what it last saw. Of equal requests one wins.
      is_evicted[i] =
          is_logged && cache.slot_stamp[request[i].slot] == request[i].stamp_seen &&
          atomicCAS(cache.slot_page + request[i].slot, request[i].page, kNoPage) == request[i].page;
      evicted_here += is_evicted[i] ? 1 : 0;
      if (is_logged) {
        WriteLogEntry(cache, log.head + entry, is_evicted[i] ? LogKind::kEvict : LogKind::kKeep,
                      request[i].page, request[i].slot, step);
      }
      entry += is_possible[i] ? 1 : 0;
    }
    __syncthreads();  // `scan` is used again
    Scan(scan).ExclusiveSum(evicted_here, place, all);
#pragma unroll
    for (uint32_t i = 0; i < kItems; ++i) {
      if (!is_evicted[i]) continue;
      cache.page_slot[request[i].page] = kNoSlot;
      cache.free_slots[num_free + num_evicted + place++] = request[i].slot;
    }
    num_evicted += all;
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
