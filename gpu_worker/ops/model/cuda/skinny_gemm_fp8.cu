// Bound by reading the weight once: out_features * in_features bytes.
//
// As the kernel for bf16, but a lane loads 16 codes, which are sixteen consecutive k, and makes
// bf16 of them in registers, exactly: sign and the other seven bits of a code, moved to their
// places in a bf16, are the number divided by 2^120, subnormal ones included. Scales are multiplied
// to sums in f32: to that of each block of 128 k where blocks have their own, else once at the end.
#include <cuda_bf16.h>

#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/model/cuda/skinny_gemm.h"
#include "gpu_worker/ops/model/cuda/skinny_gemm_parts.cuh"
#include "gpu_worker/ops/model/weight_view.h"

namespace retroinfer::cuda {
namespace {

constexpr int kStep = 64;  // of k that a warp takes at a time: 4 lanes of 16
constexpr int kStepsOfBlock = WeightScales::kBlock / kStep;
static_assert(kStepsOfBlock == 2);

// Times 2^120, exactly.
__device__ uint32_t Raise(uint32_t pair) {
  __nv_bfloat162 value = *reinterpret_cast<const __nv_bfloat162*>(&pair);
  value = __hmul2(value, __bfloat162bfloat162(__ushort_as_bfloat16(0x7b80)));
  return *reinterpret_cast<const uint32_t*>(&value);
}

// Codes 0 and 2 of a word, which are the first two k of four, and codes 1 and 3, the other two.
__device__ void ToBf16(uint32_t codes, uint32_t& first, uint32_t& second) {
  first = Raise((codes << 8 & 0x80008000u) | (codes << 4 & 0x07f007f0u));
  second = Raise((codes & 0x80008000u) | (codes >> 4 & 0x07f007f0u));
}

// Sixteen elements of a row of `in` from `k` on, zeros beyond `size`.
struct Packed16 {
  Packed8 half[2];
};
template <bool kAligned>
__device__ Packed16 LoadInput16(const __nv_bfloat16* row, int64_t k, int64_t size) {
  Packed16 packed;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // A row whose size is a multiple of 8 may end in the middle.
    packed.half[i] =
        !kAligned || k + i * 8 < size ? LoadInput<kAligned>(row, k + i * 8, size) : Packed8{};
  }
  return packed;
}

// As MultiplySlice of bf16, for weights with a scale for each feature (which are left to the
// caller) or, with kBlocks, for each block.
template <int kTiles, int kRowTiles, bool kAligned, int kUnroll, bool kBlocks>
__device__ void MultiplySlice(const SkinnyGemmLaunch& launch,
                              const int64_t (&first_features)[kTiles], int64_t first_row,
                              float (&sums)[kTiles][kRowTiles][4]) {
  static_assert(kUnroll % kStepsOfBlock == 0);
  // Steps of `in` that registers hold at a time.
  constexpr int kAhead = kRowTiles <= 2 ? kUnroll : 1;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int64_t steps = (launch.padded_in + kStep - 1) / kStep;
  // Whole blocks.
  const int64_t steps_of_warp =
      (steps + kWarps * kStepsOfBlock - 1) / (kWarps * kStepsOfBlock) * kStepsOfBlock;
  const int64_t begin = warp * steps_of_warp * kStep + lane % 4 * 16;
  const int64_t end = min(launch.padded_in, (warp + 1) * steps_of_warp * kStep);

  // Rows that do not exist are read from the last that does; nothing of theirs is stored.
  const auto* const codes = static_cast<const uint8_t*>(launch.weight);
  const uint8_t* weights[kTiles][2];
  const float* scales[kTiles][2];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t feature = min(first_features[i] + half * 8 + lane / 4, launch.out_features - 1);
      weights[i][half] = codes + feature * launch.padded_in;
      scales[i][half] = launch.scales + (feature >> launch.scale_shift) * launch.scale_cols;
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
  for (int64_t at = begin; at - lane % 4 * 16 < end; at += kUnroll * kStep) {
    Packed16 x[kAhead][kRowTiles];
    float block_scales[kUnroll / kStepsOfBlock][kTiles][2];
    const auto load_inputs = [&](int u) {
      const int64_t k = at + u * kStep;
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
        x[u % kAhead][j] =
            k < end ? LoadInput16<kAligned>(inputs[j], k, launch.in_features) : Packed16{};
      }
    };
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u < kAhead) load_inputs(u);
      if constexpr (kBlocks) {
        if (u % kStepsOfBlock != 0) continue;
        const int64_t block = min((at + u * kStep) / WeightScales::kBlock, launch.scale_cols - 1);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            block_scales[u / kStepsOfBlock][i][half] = scales[i][half][block];
          }
        }
      }
    }
#pragma unroll
    for (int b = 0; b < kUnroll / kStepsOfBlock; ++b) {
      float of_block[kTiles][kRowTiles][4] = {};
      auto& target = kBlocks ? of_block : sums;
#pragma unroll
      for (int step = 0; step < kStepsOfBlock; ++step) {
        const int u = b * kStepsOfBlock + step;
        if (u >= kAhead) load_inputs(u);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
          for (int word = 0; word < 4; ++word) {
            uint32_t low[2];
            uint32_t high[2];
            ToBf16(ring[u][i][0].word[word], low[0], low[1]);
            ToBf16(ring[u][i][1].word[word], high[0], high[1]);
#pragma unroll
            for (int j = 0; j < kRowTiles; ++j) {
              const Packed8& in = x[u % kAhead][j].half[word / 2];
              MultiplyAdd(target[i][j], low[0], high[0], low[1], high[1], in.word[word % 2 * 2],
                          in.word[word % 2 * 2 + 1]);
            }
          }
        }
        request(u, at + (kUnroll + u) * kStep);
      }
      if constexpr (kBlocks) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
          for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              sums[i][j][e] = fmaf(block_scales[b][i][e / 2], of_block[i][j][e], sums[i][j][e]);
            }
          }
        }
      }
    }
  }
}

// blockIdx.x: features; blockIdx.y: rows.
template <int kTiles, int kRowTiles, bool kAligned, int kUnroll, bool kGated, bool kBlocks>
__global__ void __launch_bounds__(kThreads) SkinnyGemmFp8Kernel(const SkinnyGemmLaunch launch) {
  extern __shared__ float partial[];
  const int64_t first_row = int64_t{blockIdx.y} * kRowTiles * kTileRows;
  int64_t first_features[kTiles];
  FirstFeatures<kTiles, kGated>(launch, first_features);
  float sums[kTiles][kRowTiles][4] = {};
  AllowNextKernel();
  MultiplySlice<kTiles, kRowTiles, kAligned, kUnroll, kBlocks>(launch, first_features, first_row,
                                                               sums);
  FinishSums<kTiles, kRowTiles, kGated>(
      launch, first_row, sums, partial, [&launch](int64_t feature) {
        return kBlocks ? 1.0f : launch.scales[feature >> launch.scale_shift];
      });
}

template <int kTiles, int kRowTiles, bool kAligned, int kUnroll, bool kGated>
cudaError_t Prepare() {
  for (const auto& kernel :
       {&SkinnyGemmFp8Kernel<kTiles, kRowTiles, kAligned, kUnroll, kGated, false>,
        &SkinnyGemmFp8Kernel<kTiles, kRowTiles, kAligned, kUnroll, kGated, true>}) {
    const cudaError_t code =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kSharedBytes<kTiles, kRowTiles>));
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

template <int kTiles, int kRowTiles, bool kAligned, int kUnroll, bool kGated = false>
cudaError_t Launch(const SkinnyGemmLaunch& launch, cudaStream_t stream) {
  const auto kernel =
      launch.scale_cols > 1
          ? &SkinnyGemmFp8Kernel<kTiles, kRowTiles, kAligned, kUnroll, kGated, true>
          : &SkinnyGemmFp8Kernel<kTiles, kRowTiles, kAligned, kUnroll, kGated, false>;
  return LaunchDependent({.grid = SkinnyGrid<kTiles, kRowTiles, kGated>(launch),
                          .block = dim3(kThreads),
                          .shared_bytes = kSharedBytes<kTiles, kRowTiles>,
                          .stream = stream},
                         kernel, launch);
}

}  // namespace

cudaError_t PrepareSkinnyGemmFp8() {
  for (const cudaError_t code : {Prepare<1, 8, true, 2, false>(), Prepare<1, 8, false, 2, false>(),
                                 Prepare<2, 8, true, 2, true>()}) {
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

cudaError_t LaunchSkinnyGemmFp8(const SkinnyGemmLaunch& launch, bool aligned, cudaStream_t stream) {
  // Features whose blocks of one tile are on a GPU of 132 multiprocessors at once, two on each: of
  // more, blocks of two tiles took less time on an H100.
  constexpr int64_t kFeaturesAtOnce = 2 * 132 * kTileFeatures;
  const bool has_blocks = launch.scale_cols > 1;
  if (launch.gated) {
    if (!aligned) return cudaErrorMisalignedAddress;
    if (launch.rows <= 8) {
      return has_blocks ? Launch<2, 1, true, 2, true>(launch, stream)
                        : Launch<2, 1, true, 4, true>(launch, stream);
    }
    if (launch.rows <= 16) return Launch<2, 2, true, 2, true>(launch, stream);
    if (launch.rows <= 32) return Launch<2, 4, true, 2, true>(launch, stream);
    return Launch<2, 8, true, 2, true>(launch, stream);
  }
  if (!aligned) return Launch<1, 8, false, 2>(launch, stream);
  if (launch.rows <= 8) {
    if (launch.out_features <= kFeaturesAtOnce) return Launch<1, 1, true, 4>(launch, stream);
    return has_blocks ? Launch<2, 1, true, 2>(launch, stream)
                      : Launch<2, 1, true, 4>(launch, stream);
  }
  if (launch.rows <= 16) return Launch<1, 2, true, 4>(launch, stream);
  if (launch.rows <= 32) return Launch<1, 4, true, 2>(launch, stream);
  return Launch<1, 8, true, 2>(launch, stream);
}

}  // namespace retroinfer::cuda
