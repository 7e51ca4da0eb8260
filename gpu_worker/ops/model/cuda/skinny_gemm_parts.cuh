// What the kernels for few rows share: how a block divides its work, and how it stores the results.
//
// A block computes 16 * kTiles output features for 8 * kRowTiles rows. Its eight warps split the
// inner dimension into eight contiguous slices; each multiplies its slice with tensor cores
// (m16n8k16, the weight as the 16-row operand), and the eight partial sums are added in the order
// of the warps. So the order of all sums is the same for every kTiles and kRowTiles.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "gpu_worker/ops/model/cuda/gated_activation.cuh"
#include "gpu_worker/ops/model/cuda/skinny_gemm.h"

namespace retroinfer::cuda {

inline constexpr int kWarps = 8;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kTileFeatures = 16;
inline constexpr int kTileRows = 8;

struct Packed8 {
  uint32_t word[4];
};

__device__ inline Packed8 LoadStreaming(const void* address) {
  Packed8 packed;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(packed.word[0]), "=r"(packed.word[1]), "=r"(packed.word[2]),
                 "=r"(packed.word[3])
               : "l"(address));
  return packed;
}

__device__ inline void MultiplyAdd(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                   uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Eight elements of a row of `in` from `k` on, zeros beyond `size`.
template <bool kAligned>
__device__ Packed8 LoadInput(const __nv_bfloat16* row, int64_t k, int64_t size) {
  if constexpr (kAligned) {
    return *reinterpret_cast<const Packed8*>(__builtin_assume_aligned(row + k, 16));
  }
  const auto* bits = reinterpret_cast<const uint16_t*>(row);
  Packed8 packed;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t low = k + 2 * i < size ? bits[k + 2 * i] : 0;
    const uint32_t high = k + 2 * i + 1 < size ? bits[k + 2 * i + 1] : 0;
    packed.word[i] = low | high << 16;
  }
  return packed;
}

__device__ inline void StoreResult(const SkinnyGemmLaunch& launch, int64_t row, int64_t feature,
                                   float sum) {
  if (launch.bias != nullptr) sum += launch.bias[feature];
  const int64_t at = row * launch.out_stride + feature;
  if (launch.out_is_f32) {
    auto* const out = reinterpret_cast<float*>(launch.out) + at;
    *out = launch.accumulate ? sum + *out : sum;
  } else {
    auto* const out = reinterpret_cast<__nv_bfloat16*>(launch.out) + at;
    *out = __float2bfloat16_rn(launch.accumulate ? sum + __bfloat162float(*out) : sum);
  }
}

// The features of tile i of this block begin at [i]. A gated kernel takes pairs of features, of one
// tile from either half of the weight.
template <int kTiles, bool kGated>
__device__ inline void FirstFeatures(const SkinnyGemmLaunch& launch, int64_t (&first)[kTiles]) {
  static_assert(!kGated || kTiles == 2);
  const int64_t begin = int64_t{blockIdx.x} * (kGated ? 1 : kTiles) * kTileFeatures;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    first[i] = begin + i * (kGated ? launch.out_features / 2 : kTileFeatures);
  }
}

// Adds the warps' sums and stores the results. Lane l holds, of row tile j and feature tile i, the
// features l / 4 and l / 4 + 8 for the rows 2 * (l % 4) and 2 * (l % 4) + 1. `partial`: shared
// memory, [kWarps][rows][features]. `scale_of(feature)` is multiplied to the sum of a feature.
template <int kTiles, int kRowTiles, bool kGated, typename ScaleOf>
__device__ inline void FinishSums(const SkinnyGemmLaunch& launch, int64_t first_row,
                                  const float (&sums)[kTiles][kRowTiles][4], float* partial,
                                  const ScaleOf& scale_of) {
  constexpr int kFeatures = kTiles * kTileFeatures;
  constexpr int kRows = kRowTiles * kTileRows;
  constexpr int kOutputs = kGated ? kTileFeatures : kFeatures;  // of a row
  const int64_t outputs = kGated ? launch.out_features / 2 : launch.out_features;
  const int64_t first_output = int64_t{blockIdx.x} * kOutputs;
  const int lane = threadIdx.x % 32;
  float* const mine = partial + threadIdx.x / 32 * (kFeatures * kRows);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int feature = i * kTileFeatures + lane / 4 + e / 2 * 8;
        const int row = j * kTileRows + lane % 4 * 2 + e % 2;
        mine[row * kFeatures + feature] = sums[i][j][e];
      }
    }
  }
  __syncthreads();
  const auto sum_of = [partial](int at) {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += partial[warp * (kFeatures * kRows) + at];
    return sum;
  };
  for (int i = threadIdx.x; i < kOutputs * kRows; i += kThreads) {
    const int64_t row = first_row + i / kOutputs;
    const int64_t output = first_output + i % kOutputs;
    if (row >= launch.rows || output >= outputs) continue;
    const int at = i / kOutputs * kFeatures + i % kOutputs;
    if constexpr (kGated) {
      const float gate = sum_of(at) * scale_of(output);
      const float up = sum_of(at + kTileFeatures) * scale_of(outputs + output);
      StoreResult(launch, row, output, GateTimes(launch.activation, gate, up));
    } else {
      StoreResult(launch, row, output, sum_of(at) * scale_of(output));
    }
  }
}

template <int kTiles, int kRowTiles>
inline constexpr size_t kSharedBytes = size_t{kWarps} *
                                       kTiles* kTileFeatures* kRowTiles* kTileRows * sizeof(float);

template <int kTiles, int kRowTiles, bool kGated>
dim3 SkinnyGrid(const SkinnyGemmLaunch& launch) {
  constexpr int64_t kOutputs = (kGated ? 1 : kTiles) * kTileFeatures;
  constexpr int64_t kRows = kRowTiles * kTileRows;
  const int64_t outputs = kGated ? launch.out_features / 2 : launch.out_features;
  return dim3(static_cast<unsigned>((outputs + kOutputs - 1) / kOutputs),
              static_cast<unsigned>((launch.rows + kRows - 1) / kRows));
}

}  // namespace retroinfer::cuda
