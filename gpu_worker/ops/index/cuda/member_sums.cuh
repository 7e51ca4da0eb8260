// Sums of the rows of a cluster's members, by one block: the same rows in the same order always
// give the same bits.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/index/cuda/cluster_rows.cuh"

namespace retroinfer::cuda {

inline constexpr int kSumWarps = 4;
inline constexpr int kSumThreads = 32 * kSumWarps;

// sum += this lane's elements of the rows of the members that are this warp's.
template <typename T, int kDim>
__device__ void AddMembers(const T* rows, const uint16_t* members, int32_t size,
                           float (&sum)[kDim / 32]) {
  constexpr int kRowsInFlight = 4;
  int32_t i = static_cast<int32_t>(threadIdx.x) / 32;
  for (; i + (kRowsInFlight - 1) * kSumWarps < size; i += kRowsInFlight * kSumWarps) {
    Elements<T, kDim / 32> row[kRowsInFlight];
#pragma unroll
    for (int j = 0; j < kRowsInFlight; ++j) {
      row[j] = LaneOfRow<T, kDim>(rows, members[i + j * kSumWarps]);
    }
#pragma unroll
    for (int j = 0; j < kRowsInFlight; ++j) AddRow<T, kDim>(row[j], sum);
  }
  for (; i < size; i += kSumWarps) AddRow<T, kDim>(LaneOfRow<T, kDim>(rows, members[i]), sum);
}

// Every warp gets the sum of all warps' `sum`, added in the order of the warps.
template <int kDim>
__device__ void AddWarps(float (&sum)[kDim / 32], float (&shared)[kSumWarps][kDim]) {
  constexpr int kPerLane = kDim / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) shared[warp][lane * kPerLane + i] = sum[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    sum[i] = 0;
    for (int w = 0; w < kSumWarps; ++w) sum[i] += shared[w][lane * kPerLane + i];
  }
}

}  // namespace retroinfer::cuda
