// The forms of weights as the kernels of grouped_linear multiply them: 16 rows of the weight and a
// step of columns at a time, with one matrix instruction (m16n8k16) after the other.
//
// A lane has rows l / 4 and l / 4 + 8, and of each 16 bytes of a step: chunk l % 4. As in the
// kernels for few rows (skinny_gemm.cu), any order of k will do that is the same for both operands,
// so these bytes are consecutive k, and the lane takes the same k of a row of `in`, eight at a
// time.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "gpu_worker/ops/model/cuda/grouped_launch.h"
#include "gpu_worker/ops/model/cuda/grouped_weight.h"
#include "gpu_worker/ops/model/cuda/int4_layout.h"
#include "gpu_worker/ops/model/cuda/skinny_gemm_parts.cuh"
#include "gpu_worker/ops/model/route_experts.h"
#include "gpu_worker/ops/model/weight_view.h"

namespace retroinfer::cuda {

// The bias of a row of the weight.
__device__ inline float BiasOf(const GroupedLaunch& launch, int64_t row) {
  return launch.bias == nullptr ? 0 : launch.bias[row];
}

// Each form has:
//
// * kStepCols: k of a step. kInputs and kMmas: eights and sixteens of them that a lane takes part
//   in. kRowBytes: of a step.
// * kScaledMmas: products that share a scale, which is multiplied to their sum; 0: all of a row.
//   kWords: words of scales of a step.
// * RowAt: where a row begins; its next step is StepBytes() on.
// * InputAt: where, in a step, the i-th eight k of a lane are.
// * LoadScales: the words of a row's step. ScaleOf: the number in such a word.
// * Unpack: a lane's bytes as operands of the products of a step.
// * FeatureScale: of all of a row.

struct Bf16Form {
  static constexpr int kStepCols = 32, kInputs = 1, kMmas = 2, kRowBytes = 64;
  static constexpr int kScaledMmas = 0, kWords = 1;

  __device__ static constexpr int64_t StepBytes() { return kRowBytes; }
  __device__ static const std::byte* RowAt(const GroupedWeight& weight, int64_t row) {
    return static_cast<const std::byte*>(weight.codes) + row * weight.padded_cols * 2;
  }
  __device__ static constexpr int InputAt(int, int chunk) { return chunk * 8; }
  __device__ static void LoadScales(const GroupedWeight&, int64_t, int64_t, uint32_t (&)[kWords]) {}
  __device__ static void Unpack(const Packed8& low, const Packed8& high, const uint32_t (&)[kWords],
                                const uint32_t (&)[kWords], uint32_t (&a)[kMmas][4]) {
#pragma unroll
    for (int m = 0; m < kMmas; ++m) {
      a[m][0] = low.word[2 * m];
      a[m][1] = high.word[2 * m];
      a[m][2] = low.word[2 * m + 1];
      a[m][3] = high.word[2 * m + 1];
    }
  }
  __device__ static float ScaleOf(uint32_t) { return 1.0f; }
  __device__ static float FeatureScale(const GroupedWeight&, int64_t) { return 1.0f; }
};

// See skinny_gemm_fp8.cu for what is done to codes.
template <bool kBlocks>
struct Fp8Form {
  static constexpr int kStepCols = 64, kInputs = 2, kMmas = 4, kRowBytes = 64;
  static constexpr int kScaledMmas = kBlocks ? kMmas : 0, kWords = 1;

  __device__ static constexpr int64_t StepBytes() { return kRowBytes; }
  __device__ static const std::byte* RowAt(const GroupedWeight& weight, int64_t row) {
    return static_cast<const std::byte*>(weight.codes) + row * weight.padded_cols;
  }
  __device__ static constexpr int InputAt(int i, int chunk) { return chunk * 16 + i * 8; }
  __device__ static void LoadScales(const GroupedWeight& weight, int64_t row, int64_t step,
                                    uint32_t (&words)[kWords]) {
    if constexpr (kBlocks) {
      const int64_t block = step * kStepCols / WeightScales::kBlock;
      const int64_t at = (row >> weight.scale_shift) * weight.scale_cols;
      words[0] = __float_as_uint(weight.scales[at + min(block, weight.scale_cols - 1)]);
    }
  }
  // Times 2^120, exactly.
  __device__ static uint32_t Raise(uint32_t pair) {
    __nv_bfloat162 value = *reinterpret_cast<const __nv_bfloat162*>(&pair);
    value = __hmul2(value, __bfloat162bfloat162(__ushort_as_bfloat16(0x7b80)));
    return *reinterpret_cast<const uint32_t*>(&value);
  }
  __device__ static void Unpack(const Packed8& low, const Packed8& high, const uint32_t (&)[kWords],
                                const uint32_t (&)[kWords], uint32_t (&a)[kMmas][4]) {
#pragma unroll
    for (int m = 0; m < kMmas; ++m) {
      a[m][0] = Raise((low.word[m] << 8 & 0x80008000u) | (low.word[m] << 4 & 0x07f007f0u));
      a[m][1] = Raise((high.word[m] << 8 & 0x80008000u) | (high.word[m] << 4 & 0x07f007f0u));
      a[m][2] = Raise((low.word[m] & 0x80008000u) | (low.word[m] >> 4 & 0x07f007f0u));
      a[m][3] = Raise((high.word[m] & 0x80008000u) | (high.word[m] >> 4 & 0x07f007f0u));
    }
  }
  __device__ static float ScaleOf(uint32_t word) { return __uint_as_float(word); }
  __device__ static float FeatureScale(const GroupedWeight& weight, int64_t row) {
    return kBlocks ? 1.0f : weight.scales[row >> weight.scale_shift];
  }
};

// See skinny_gemm_int4.cu for what is done to codes. kStepGroups: 1, or 4 for groups of 32 or 64.
template <int kStepGroups>
struct Int4Form {
  static constexpr int kStepCols = 128, kInputs = 4, kMmas = 8, kRowBytes = 64;
  static constexpr int kScaledMmas = kMmas / kStepGroups, kWords = kStepGroups;
  static_assert(kStepCols == kInt4StepCols);

  __device__ static constexpr int64_t StepBytes() { return kInt4StepWords * 4; }
  __device__ static const std::byte* RowAt(const GroupedWeight& weight, int64_t row) {
    return static_cast<const std::byte*>(weight.codes) + Int4WordAt(row, 0, weight.padded_cols) * 4;
  }
  __device__ static constexpr int InputAt(int i, int chunk) { return i * 32 + chunk * 8; }
  __device__ static void LoadScales(const GroupedWeight& weight, int64_t row, int64_t step,
                                    uint32_t (&words)[kWords]) {
    const int64_t num_groups = weight.padded_cols / weight.group_cols;
    const uint32_t* const of_row = weight.groups + Int4GroupAt(row, 0, num_groups);
    const int shift = weight.group_cols == 64 ? 1 : 0;
#pragma unroll
    for (int g = 0; g < kWords; ++g) {
      const int64_t group = kStepGroups == 1 ? step : (step * kStepGroups + g) >> shift;
      words[g] = of_row[group * kInt4TileRows];
    }
  }
  // Eight codes less their zero as four pairs of consecutive k.
  __device__ static void ToBf16(uint32_t codes, uint32_t group, uint32_t (&pairs)[4]) {
    const uint32_t offset = 0x43004300u + (group & 0x1f) * 0x10001u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t raised = (codes >> 4 * i & 0x000f000fu) | 0x43004300u;
      const __nv_bfloat162 pair = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&raised),
                                          *reinterpret_cast<const __nv_bfloat162*>(&offset));
      pairs[i] = *reinterpret_cast<const uint32_t*>(&pair);
    }
  }
  __device__ static void Unpack(const Packed8& low, const Packed8& high,
                                const uint32_t (&low_groups)[kWords],
                                const uint32_t (&high_groups)[kWords], uint32_t (&a)[kMmas][4]) {
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      uint32_t of_low[4];
      uint32_t of_high[4];
      ToBf16(low.word[word], low_groups[word * kWords / 4], of_low);
      ToBf16(high.word[word], high_groups[word * kWords / 4], of_high);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        a[word * 2 + half][0] = of_low[2 * half];
        a[word * 2 + half][1] = of_high[2 * half];
        a[word * 2 + half][2] = of_low[2 * half + 1];
        a[word * 2 + half][3] = of_high[2 * half + 1];
      }
    }
  }
  __device__ static float ScaleOf(uint32_t word) { return __uint_as_float(word & ~0x1fu); }
  __device__ static float FeatureScale(const GroupedWeight&, int64_t) { return 1.0f; }
};

// Adds the products of a lane's part of a step with rows of `in` to `sums`. x[j][i]: of row tile j
// the i-th eight k.
template <typename Form, int kRowTiles>
__device__ void MultiplyStep(const Packed8 (&codes)[2], const uint32_t (&scales)[2][Form::kWords],
                             const Packed8 (&x)[kRowTiles][Form::kInputs],
                             float (&sums)[kRowTiles][4]) {
  constexpr bool kScaled = Form::kScaledMmas > 0;
  [[maybe_unused]] constexpr int kSharing = kScaled ? Form::kScaledMmas : Form::kMmas;
  uint32_t a[Form::kMmas][4];
  Form::Unpack(codes[0], codes[1], scales[0], scales[1], a);
#pragma unroll
  for (int j = 0; j < kRowTiles; ++j) {
    float of_group[4] = {};
#pragma unroll
    for (int m = 0; m < Form::kMmas; ++m) {
      const Packed8& in = x[j][m / 2];
      MultiplyAdd(kScaled ? of_group : sums[j], a[m][0], a[m][1], a[m][2], a[m][3],
                  in.word[m % 2 * 2], in.word[m % 2 * 2 + 1]);
      if constexpr (kScaled) {
        if ((m + 1) % kSharing != 0) continue;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float scale = Form::ScaleOf(scales[e / 2][m / kSharing]);
          sums[j][e] = fmaf(scale, of_group[e], sums[j][e]);
          of_group[e] = 0;
        }
      }
    }
  }
}

// In 32 bits, which a GPU divides faster.
__device__ inline int64_t RowOfPair(const RoutePlan& plan, int64_t pair) {
  return static_cast<uint32_t>(pair) / static_cast<uint32_t>(plan.per_row);
}

// Calls body(form) with the form of a weight.
template <typename Body>
cudaError_t WithForm(GroupedForm form, const Body& body) {
  switch (form) {
    case GroupedForm::kBf16:
      return body(Bf16Form());
    case GroupedForm::kFp8Features:
      return body(Fp8Form<false>());
    case GroupedForm::kFp8Blocks:
      return body(Fp8Form<true>());
    case GroupedForm::kInt4Steps:
      return body(Int4Form<1>());
    case GroupedForm::kInt4Words:
      return body(Int4Form<4>());
    case GroupedForm::kNone:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace retroinfer::cuda
