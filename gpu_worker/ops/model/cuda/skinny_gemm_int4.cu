// Bound by reading the weight once: out_features * in_features / 2 bytes, and 4 for each group.
//
// As the kernel for bf16, but a lane loads 16 bytes that are 32 codes (int4_layout.h), a warp a
// step of 128 k of eight features. A code less its zero is made bf16 in registers, exactly: with
// 0x4300 before it, it is 128 more than the code, and 128 and the zero are taken off. Products of a
// group are added in f32, then times the group's scale to the sums: scales are never rounded.
#include <cuda_bf16.h>

#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/model/cuda/int4_layout.h"
#include "gpu_worker/ops/model/cuda/skinny_gemm_int4.h"
#include "gpu_worker/ops/model/cuda/skinny_gemm_parts.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int kStepWords = 4;  // of a lane: 32 k of all lanes each
static_assert(kInt4TileRows == kTileFeatures && kInt4StepCols == kStepWords * 32);

// Two times what is taken off a code with 0x4300 before it.
__device__ uint32_t OffsetOf(uint32_t group) { return 0x43004300u + (group & 0x1f) * 0x10001u; }
__device__ float ScaleOf(uint32_t group) { return __uint_as_float(group & ~0x1fu); }

// Eight codes as four pairs of consecutive k.
__device__ void ToBf16(uint32_t codes, uint32_t offset, uint32_t (&pairs)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t raised = (codes >> 4 * i & 0x000f000fu) | 0x43004300u;
    const __nv_bfloat162 pair = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&raised),
                                        *reinterpret_cast<const __nv_bfloat162*>(&offset));
    pairs[i] = *reinterpret_cast<const uint32_t*>(&pair);
  }
}

// Elements k to k + 7 of a row of `in`, in the order of the weight's columns; zeros beyond `size`.
template <bool kAligned>
__device__ Packed8 LoadColumns(const __nv_bfloat16* row, const int32_t* columns, int64_t k,
                               int64_t size) {
  if constexpr (kAligned) return k < size ? LoadInput<true>(row, k, size) : Packed8{};
  if (columns == nullptr) return LoadInput<false>(row, k, size);
  const auto* bits = reinterpret_cast<const uint16_t*>(row);
  Packed8 packed;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t low = k + 2 * i < size ? bits[columns[k + 2 * i]] : 0;
    const uint32_t high = k + 2 * i + 1 < size ? bits[columns[k + 2 * i + 1]] : 0;
    packed.word[i] = low | high << 16;
  }
  return packed;
}

// A lane's part of a step of the weight, for one tile: features l / 4 and l / 4 + 8.
template <int kGroups>
struct StepOfTile {
  Packed8 codes[2];
  uint32_t groups[2][kGroups];
};

// Where the parts of a lane begin.
template <int kGroups>
struct TileAddress {
  const uint32_t* codes[2];
  const uint32_t* groups[2];

  __device__ void Set(const Int4Weight& weight, int64_t first_feature) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Rows that do not exist are read from the last that does; nothing of theirs is stored.
      const int64_t feature = min(first_feature + half * 8 + lane / 4, weight.rows - 1);
      codes[half] = weight.codes + Int4WordAt(feature, 0, weight.padded_cols) + lane % 4 * 4;
      groups[half] = weight.groups + Int4GroupAt(feature, 0, weight.num_groups());
    }
  }
  // `group_shift`: of a word's number, for its group's.
  __device__ void Load(int64_t step, int group_shift, StepOfTile<kGroups>& part) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      part.codes[half] = LoadStreaming(codes[half] + step * kInt4StepWords);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int64_t group = kGroups == 1 ? step : (step * kStepWords + g) >> group_shift;
        part.groups[half][g] = groups[half][group * kInt4TileRows];
      }
    }
  }
};

// Adds the products of a word with rows of `in` to the sums of its group.
template <int kRowTiles, int kGroups>
__device__ void MultiplyWord(const StepOfTile<kGroups>& part, int word,
                             const Packed8 (&x)[kRowTiles], float (&sums)[kRowTiles][4]) {
  const int group = word * kGroups / kStepWords;
  uint32_t low[4];
  uint32_t high[4];
  ToBf16(part.codes[0].word[word], OffsetOf(part.groups[0][group]), low);
  ToBf16(part.codes[1].word[word], OffsetOf(part.groups[1][group]), high);
#pragma unroll
  for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
    for (int pair = 0; pair < 4; pair += 2) {
      MultiplyAdd(sums[j], low[pair], high[pair], low[pair + 1], high[pair + 1], x[j].word[pair],
                  x[j].word[pair + 1]);
    }
  }
}

// Adds a group's sums, which become zero, times its scale; `word` is of the group.
template <int kRowTiles, int kGroups>
__device__ void AddGroup(const StepOfTile<kGroups>& part, int word, float (&of_group)[kRowTiles][4],
                         float (&sums)[kRowTiles][4]) {
  const int group = word * kGroups / kStepWords;
#pragma unroll
  for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      sums[j][e] = fmaf(ScaleOf(part.groups[e / 2][group]), of_group[j][e], sums[j][e]);
      of_group[j][e] = 0;
    }
  }
}

// As MultiplySlice of bf16. kGroups: of a step; 1 if groups are of whole steps.
template <int kTiles, int kRowTiles, bool kAligned, int kUnroll, int kGroups>
__device__ void MultiplySlice(const SkinnyGemmLaunch& launch, const Int4Weight& weight,
                              const int64_t (&first_features)[kTiles], int64_t first_row,
                              float (&sums)[kTiles][kRowTiles][4]) {
  constexpr int kWordsOfGroup = kStepWords / kGroups;
  // Words of `in` that registers hold at a time.
  constexpr int kAhead = kRowTiles == 1 ? 4 : kRowTiles == 2 ? 2 : 1;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int64_t steps = weight.padded_cols / kInt4StepCols;
  const int64_t steps_of_warp = (steps + kWarps - 1) / kWarps;
  const int64_t begin = warp * steps_of_warp;
  const int64_t end = min(steps, begin + steps_of_warp);
  const int group_shift = weight.group_cols == 64 ? 1 : 0;

  TileAddress<kGroups> addresses[kTiles];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) addresses[i].Set(weight, first_features[i]);
  StepOfTile<kGroups> ring[kUnroll][kTiles];
  const auto request = [&](int u, int64_t step) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (step < end) {
        addresses[i].Load(step, group_shift, ring[u][i]);
      } else {
        ring[u][i] = {};
      }
    }
  };
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) request(u, begin + u);

  AwaitLastKernel();
  const __nv_bfloat16* inputs[kRowTiles];
#pragma unroll
  for (int j = 0; j < kRowTiles; ++j) {
    const int64_t row = min(first_row + j * kTileRows + lane / 4, launch.rows - 1);
    inputs[j] = static_cast<const __nv_bfloat16*>(launch.in) + row * launch.in_stride;
  }
  for (int64_t at = begin; at < end; at += kUnroll) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t step = at + u;
      Packed8 x[kAhead][kRowTiles];
      float of_group[kTiles][kRowTiles][4] = {};
#pragma unroll
      for (int word = 0; word < kStepWords; ++word) {
        if (word % kAhead == 0) {
#pragma unroll
          for (int ahead = 0; ahead < kAhead; ++ahead) {
            const int64_t k = step * kInt4StepCols + (word + ahead) * 32 + lane % 4 * 8;
#pragma unroll
            for (int j = 0; j < kRowTiles; ++j) {
              x[ahead][j] = step < end ? LoadColumns<kAligned>(inputs[j], weight.columns, k,
                                                               launch.in_features)
                                       : Packed8{};
            }
          }
        }
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          MultiplyWord<kRowTiles, kGroups>(ring[u][i], word, x[word % kAhead], of_group[i]);
          if ((word + 1) % kWordsOfGroup == 0) {
            AddGroup<kRowTiles, kGroups>(ring[u][i], word, of_group[i], sums[i]);
          }
        }
      }
      request(u, at + kUnroll + u);
    }
  }
}

// Two blocks on a multiprocessor, where registers allow: while one ends, the other reads.
template <int kRowTiles>
constexpr int kBlocks = kRowTiles <= 2 ? 2 : 1;

// blockIdx.x: features; blockIdx.y: rows.
template <int kTiles, int kRowTiles, bool kAligned, int kUnroll, bool kGated, int kGroups>
__global__ void __launch_bounds__(kThreads, kBlocks<kRowTiles>)
    SkinnyGemmInt4Kernel(const SkinnyGemmLaunch launch, const Int4Weight weight) {
  extern __shared__ float partial[];
  const int64_t first_row = int64_t{blockIdx.y} * kRowTiles * kTileRows;
  int64_t first_features[kTiles];
  FirstFeatures<kTiles, kGated>(launch, first_features);
  float sums[kTiles][kRowTiles][4] = {};
  AllowNextKernel();
  MultiplySlice<kTiles, kRowTiles, kAligned, kUnroll, kGroups>(launch, weight, first_features,
                                                               first_row, sums);
  FinishSums<kTiles, kRowTiles, kGated>(launch, first_row, sums, partial,
                                        [](int64_t) { return 1.0f; });
}

template <int kTiles, int kRowTiles, bool kAligned, int kUnroll, bool kGated>
cudaError_t Prepare() {
  for (const auto& kernel :
       {&SkinnyGemmInt4Kernel<kTiles, kRowTiles, kAligned, kUnroll, kGated, 1>,
        &SkinnyGemmInt4Kernel<kTiles, kRowTiles, kAligned, kUnroll, kGated, kStepWords>}) {
    const cudaError_t code =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kSharedBytes<kTiles, kRowTiles>));
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

template <int kTiles, int kRowTiles, bool kAligned, int kUnroll, bool kGated>
cudaError_t Launch(const SkinnyGemmLaunch& launch, const Int4Weight& weight, cudaStream_t stream) {
  // More groups in flight are more registers than two blocks on a multiprocessor leave.
  constexpr int kUnrollOfSmall = kRowTiles == 2 ? 1 : kUnroll;
  const auto kernel =
      weight.group_cols == kInt4StepCols
          ? &SkinnyGemmInt4Kernel<kTiles, kRowTiles, kAligned, kUnroll, kGated, 1>
          : &SkinnyGemmInt4Kernel<kTiles, kRowTiles, kAligned, kUnrollOfSmall, kGated, kStepWords>;
  return LaunchDependent({.grid = SkinnyGrid<kTiles, kRowTiles, kGated>(launch),
                          .block = dim3(kThreads),
                          .shared_bytes = kSharedBytes<kTiles, kRowTiles>,
                          .stream = stream},
                         kernel, launch, weight);
}

// Of pairs of tiles: a gated product, or one of many features.
template <bool kGated>
cudaError_t LaunchPairs(const SkinnyGemmLaunch& launch, const Int4Weight& weight, bool aligned,
                        cudaStream_t stream) {
  if (!aligned) {
    return launch.rows <= 8 ? Launch<2, 1, false, 1, kGated>(launch, weight, stream)
                            : Launch<2, 2, false, 1, kGated>(launch, weight, stream);
  }
  if (launch.rows <= 8) return Launch<2, 1, true, 2, kGated>(launch, weight, stream);
  if (launch.rows <= 16) return Launch<2, 2, true, 2, kGated>(launch, weight, stream);
  if (launch.rows <= 32) return Launch<2, 4, true, 1, kGated>(launch, weight, stream);
  return Launch<2, 8, true, 1, kGated>(launch, weight, stream);
}

}  // namespace

cudaError_t PrepareSkinnyGemmInt4() {
  const cudaError_t code = Prepare<2, 8, true, 1, false>();
  return code != cudaSuccess ? code : Prepare<2, 8, true, 1, true>();
}

cudaError_t LaunchSkinnyGemmInt4(const SkinnyGemmLaunch& launch, const Int4Weight& weight,
                                 cudaStream_t stream) {
  // Features whose blocks of one tile are on a GPU of 132 multiprocessors at once, two on each.
  constexpr int64_t kFeaturesAtOnce = 2 * 132 * kTileFeatures;
  const bool aligned = reinterpret_cast<uintptr_t>(launch.in) % 16 == 0 &&
                       launch.in_stride % 8 == 0 && launch.in_features % 8 == 0 &&
                       weight.columns == nullptr;
  if (launch.gated) return LaunchPairs<true>(launch, weight, aligned, stream);
  if (aligned && launch.rows <= 8 && launch.out_features <= kFeaturesAtOnce) {
    return Launch<1, 1, true, 4, false>(launch, weight, stream);
  }
  return LaunchPairs<false>(launch, weight, aligned, stream);
}

}  // namespace retroinfer::cuda
