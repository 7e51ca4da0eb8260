// Bound by reading the weight once: 2 * out_features * in_features bytes.
//
// A lane loads 16 bytes of a weight row at a time, which are eight consecutive k. The matrix
// instruction wants other k in one lane; but any order of k will do that is the same for both
// operands, so each lane hands its eight values over as they are, four to each of two instructions.
#include <algorithm>

#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/model/cuda/skinny_gemm.h"
#include "gpu_worker/ops/model/cuda/skinny_gemm_parts.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int kStep = 32;  // of k that a warp takes at a time: 4 lanes of 8

// The sums of one warp's slice of k. Lane l holds, of row tile j and feature tile i, the features
// l / 4 and l / 4 + 8 for the rows 2 * (l % 4) and 2 * (l % 4) + 1. `first_features`: of each tile.
// A ring of kUnroll steps of weights is under way all the time; the first are asked for before the
// kernel that computes `in` has ended.
template <int kTiles, int kRowTiles, bool kAligned, int kUnroll>
__device__ void MultiplySlice(const SkinnyGemmLaunch& launch,
                              const int64_t (&first_features)[kTiles], int64_t first_row,
                              float (&sums)[kTiles][kRowTiles][4]) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int64_t steps = (launch.padded_in + kStep - 1) / kStep;
  const int64_t steps_of_warp = (steps + kWarps - 1) / kWarps;
  const int64_t begin = warp * steps_of_warp * kStep + lane % 4 * 8;
  const int64_t end = min(launch.padded_in, (warp + 1) * steps_of_warp * kStep);

  // Rows that do not exist are read from the last that does; nothing of theirs is stored.
  const auto* const weight = static_cast<const __nv_bfloat16*>(launch.weight);
  const __nv_bfloat16* weights[kTiles][2];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t feature = first_features[i] + half * 8 + lane / 4;
      weights[i][half] = weight + min(feature, launch.out_features - 1) * launch.padded_in;
    }
  }
  Packed8 ring[kUnroll][kTiles][2];
  const auto request = [&](int u, int64_t k) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        ring[u][i][half] = k < end ? LoadStreaming(weights[i][half] + k) : Packed8{};
      }
    }
  };
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) request(u, begin + u * kStep);

  AwaitLastKernel();
  const __nv_bfloat16* inputs[kRowTiles];
#pragma unroll
  for (int j = 0; j < kRowTiles; ++j) {
    const int64_t row = min(first_row + j * kTileRows + lane / 4, launch.rows - 1);
    inputs[j] = static_cast<const __nv_bfloat16*>(launch.in) + row * launch.in_stride;
  }
  for (int64_t at = begin; at - lane % 4 * 8 < end; at += kUnroll * kStep) {
    Packed8 x[kUnroll][kRowTiles];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t k = at + u * kStep;
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
        x[u][j] = k < end ? LoadInput<kAligned>(inputs[j], k, launch.in_features) : Packed8{};
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          const Packed8& low = ring[u][i][0];
          const Packed8& high = ring[u][i][1];
          MultiplyAdd(sums[i][j], low.word[0], high.word[0], low.word[1], high.word[1],
                      x[u][j].word[0], x[u][j].word[1]);
          MultiplyAdd(sums[i][j], low.word[2], high.word[2], low.word[3], high.word[3],
                      x[u][j].word[2], x[u][j].word[3]);
        }
      }
      request(u, at + (kUnroll + u) * kStep);
    }
  }
}

// blockIdx.x: features; blockIdx.y: rows.
template <int kTiles, int kRowTiles, bool kAligned, int kUnroll, bool kGated>
__global__ void __launch_bounds__(kThreads) SkinnyGemmKernel(const SkinnyGemmLaunch launch) {
  extern __shared__ float partial[];
  const int64_t first_row = int64_t{blockIdx.y} * kRowTiles * kTileRows;
  int64_t first_features[kTiles];
  FirstFeatures<kTiles, kGated>(launch, first_features);
  float sums[kTiles][kRowTiles][4] = {};
  AllowNextKernel();
  MultiplySlice<kTiles, kRowTiles, kAligned, kUnroll>(launch, first_features, first_row, sums);
  FinishSums<kTiles, kRowTiles, kGated>(launch, first_row, sums, partial,
                                        [](int64_t) { return 1.0f; });
}

template <int kTiles, int kRowTiles, bool kAligned, int kUnroll, bool kGated>
cudaError_t Prepare() {
  return cudaFuncSetAttribute(SkinnyGemmKernel<kTiles, kRowTiles, kAligned, kUnroll, kGated>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(kSharedBytes<kTiles, kRowTiles>));
}

template <int kTiles, int kRowTiles, bool kAligned, int kUnroll, bool kGated = false>
cudaError_t Launch(const SkinnyGemmLaunch& launch, cudaStream_t stream) {
  return LaunchDependent({.grid = SkinnyGrid<kTiles, kRowTiles, kGated>(launch),
                          .block = dim3(kThreads),
                          .shared_bytes = kSharedBytes<kTiles, kRowTiles>,
                          .stream = stream},
                         &SkinnyGemmKernel<kTiles, kRowTiles, kAligned, kUnroll, kGated>, launch);
}

}  // namespace

cudaError_t PrepareSkinnyGemm() {
  for (const cudaError_t code : {Prepare<2, 8, true, 1, false>(), Prepare<2, 8, false, 1, false>(),
                                 Prepare<2, 8, true, 1, true>()}) {
    if (code != cudaSuccess) return code;
  }
  return PrepareSkinnyGemmFp8();
}

cudaError_t LaunchSkinnyGemm(const SkinnyGemmLaunch& launch, cudaStream_t stream) {
  const bool aligned = reinterpret_cast<uintptr_t>(launch.in) % 16 == 0 &&
                       launch.in_stride % 8 == 0 && launch.in_features % 8 == 0;
  if (launch.scales != nullptr) return LaunchSkinnyGemmFp8(launch, aligned, stream);
  if (launch.gated) {
    if (!aligned) return cudaErrorMisalignedAddress;
    if (launch.rows <= 8) return Launch<2, 1, true, 2, true>(launch, stream);
    if (launch.rows <= 16) return Launch<2, 2, true, 2, true>(launch, stream);
    if (launch.rows <= 32) return Launch<2, 4, true, 2, true>(launch, stream);
    return Launch<2, 8, true, 1, true>(launch, stream);
  }
  if (!aligned) return Launch<2, 8, false, 1>(launch, stream);
  if (launch.rows <= 8) return Launch<1, 1, true, 4>(launch, stream);
  if (launch.rows <= 16) return Launch<1, 2, true, 4>(launch, stream);
  if (launch.rows <= 32) return Launch<1, 4, true, 4>(launch, stream);
  return Launch<2, 8, true, 1>(launch, stream);
}

}  // namespace retroinfer::cuda
