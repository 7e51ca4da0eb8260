// Bound by reading the weight once: 2 * out_features * in_features bytes.
//
// A block computes 16 * kTiles output features for 8 * kRowTiles rows. Its eight warps split the
// inner dimension into eight contiguous slices; each multiplies its slice with tensor cores
// (m16n8k16, the weight as the 16-row operand), and the eight partial sums are added in the order
// of the warps. So the order of all sums is the same for every kTiles and kRowTiles.
//
// A lane loads 16 bytes of a weight row at a time, which are eight consecutive k. The matrix
// instruction wants other k in one lane; but any order of k will do that is the same for both
// operands, so each lane hands its eight values over as they are, four to each of two instructions.
#include <cuda_bf16.h>

#include <algorithm>

#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/model/cuda/skinny_gemm.h"

namespace retroinfer::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kTileFeatures = 16;
constexpr int kTileRows = 8;
constexpr int kStep = 32;  // of k that a warp takes at a time: 4 lanes of 8

struct Packed8 {
  uint32_t word[4];
};

__device__ Packed8 LoadStreaming(const __nv_bfloat16* address) {
  Packed8 packed;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(packed.word[0]), "=r"(packed.word[1]), "=r"(packed.word[2]),
                 "=r"(packed.word[3])
               : "l"(address));
  return packed;
}

__device__ void MultiplyAdd(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                            uint32_t b0, uint32_t b1) {
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

__device__ void StoreResult(const SkinnyGemmLaunch& launch, int64_t row, int64_t feature,
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

// exp(-gate) may be infinite: the quotient is then zero with the right sign.
__device__ float SiluTimes(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

// blockIdx.x: features; blockIdx.y: rows. Shared memory: [kWarps][rows][features] f32. kGated: the
// features are pairs, of one tile from either half of the weight.
template <int kTiles, int kRowTiles, bool kAligned, int kUnroll, bool kGated>
__global__ void __launch_bounds__(kThreads) SkinnyGemmKernel(const SkinnyGemmLaunch launch) {
  static_assert(!kGated || kTiles == 2);
  constexpr int kFeatures = kTiles * kTileFeatures;
  constexpr int kRows = kRowTiles * kTileRows;
  constexpr int kOutputs = kGated ? kTileFeatures : kFeatures;  // of a row
  extern __shared__ float partial[];
  const int64_t outputs = kGated ? launch.out_features / 2 : launch.out_features;
  const int64_t first_output = int64_t{blockIdx.x} * kOutputs;
  const int64_t first_row = int64_t{blockIdx.y} * kRows;
  int64_t first_features[kTiles];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    first_features[i] = first_output + i * (kGated ? outputs : kTileFeatures);
  }
  float sums[kTiles][kRowTiles][4] = {};
  AllowNextKernel();
  MultiplySlice<kTiles, kRowTiles, kAligned, kUnroll>(launch, first_features, first_row, sums);

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
  const auto sum_of = [](int at) {
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
      StoreResult(launch, row, output, SiluTimes(sum_of(at), sum_of(at + kTileFeatures)));
    } else {
      StoreResult(launch, row, output, sum_of(at));
    }
  }
}

template <int kTiles, int kRowTiles>
constexpr size_t kSharedBytes = size_t{kWarps} * kTiles* kTileFeatures* kRowTiles* kTileRows *
                                sizeof(float);

template <int kTiles, int kRowTiles, bool kAligned, int kUnroll, bool kGated>
cudaError_t Prepare() {
  return cudaFuncSetAttribute(SkinnyGemmKernel<kTiles, kRowTiles, kAligned, kUnroll, kGated>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(kSharedBytes<kTiles, kRowTiles>));
}

template <int kTiles, int kRowTiles, bool kAligned, int kUnroll, bool kGated = false>
cudaError_t Launch(const SkinnyGemmLaunch& launch, cudaStream_t stream) {
  constexpr int64_t kOutputs = (kGated ? 1 : kTiles) * kTileFeatures;
  constexpr int64_t kRows = kRowTiles * kTileRows;
  const int64_t outputs = kGated ? launch.out_features / 2 : launch.out_features;
  const dim3 grid(static_cast<unsigned>((outputs + kOutputs - 1) / kOutputs),
                  static_cast<unsigned>((launch.rows + kRows - 1) / kRows));
  return LaunchDependent({.grid = grid,
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
  return cudaSuccess;
}

cudaError_t LaunchSkinnyGemm(const SkinnyGemmLaunch& launch, cudaStream_t stream) {
  const bool aligned = reinterpret_cast<uintptr_t>(launch.in) % 16 == 0 &&
                       launch.in_stride % 8 == 0 && launch.in_features % 8 == 0;
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
