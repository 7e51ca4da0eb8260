// Walks over a table of ids in order, for the operations that log every id in it.
#pragma once

#include <cstdint>
#include <cub/block/block_scan.cuh>

namespace retroinfer::cuda {

inline constexpr int kWalkThreads = 1024;

// How far a walk came.
struct WalkEnd {
  uint32_t next;       // the first place not examined
  uint32_t num_found;  // ids visited
};

// Calls visit(place, id, number) for the places of [first, end) whose id is not `none`, numbered
// from 0 in order, up to `limit` of them; stops at the next one. visit() may change the place's
// entry. Called by a whole block of kWalkThreads; bound by memory and latency.
template <typename Visit>
__device__ WalkEnd WalkIds(const uint32_t* ids, uint32_t none, uint32_t first, uint32_t end,
                           uint64_t limit, Visit visit) {
  constexpr uint32_t kPerThread = 8;
  using Scan = cub::BlockScan<uint32_t, kWalkThreads>;
  __shared__ Scan::TempStorage scan;
  __shared__ uint32_t stop;
  if (threadIdx.x == 0) stop = end;
  uint32_t num_found = 0;
  for (uint64_t base = first; base < end; base += kPerThread * kWalkThreads) {
    const uint64_t place = base + threadIdx.x * kPerThread;
    uint32_t id[kPerThread];
    uint32_t count = 0;
#pragma unroll
    for (uint32_t i = 0; i < kPerThread; ++i) {
      id[i] = place + i < end ? ids[place + i] : none;
      count += id[i] != none ? 1 : 0;
    }
    uint32_t before = 0, all = 0;
    Scan(scan).ExclusiveSum(count, before, all);
    uint64_t number = uint64_t{num_found} + before;
#pragma unroll
    for (uint32_t i = 0; i < kPerThread; ++i) {
      if (id[i] == none) continue;
      if (number < limit) visit(static_cast<uint32_t>(place + i), id[i], number);
      if (number == limit) stop = static_cast<uint32_t>(place + i);  // of one thread
      ++number;
    }
    num_found += all;
    __syncthreads();
    if (num_found > limit) break;
  }
  __syncthreads();
  return {stop, static_cast<uint32_t>(min(uint64_t{num_found}, limit))};
}

}  // namespace retroinfer::cuda
