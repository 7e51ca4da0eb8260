// The arithmetic of rms_norm of bf16 rows, for kernels that do more than normalise: who calls these
// with a block of kNormThreads threads, of which each has the same columns, gets the same bits.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "gpu_worker/ops/model/rms_norm.h"

namespace retroinfer::cuda {

// What kernels are told of a norm, but for its input.
struct NormLaunch {
  const std::byte* weight;
  DType weight_dtype;
  float epsilon;
  float scale;
  float weight_offset;
  bool accumulate;
  __nv_bfloat16* out;
  int64_t out_stride;
};

inline NormLaunch NormLaunchOf(const RmsNormArgs& args) {
  return {args.weight.data,
          args.weight.dtype,
          args.epsilon,
          args.scale,
          args.weight_offset,
          args.accumulate,
          reinterpret_cast<__nv_bfloat16*>(args.out.data),
          args.out.row_stride};
}

constexpr int kNormThreads = 512;
constexpr int kNormWarps = kNormThreads / 32;

// `squares`, and those of `count` more values.
template <int kCount>
__device__ inline float WithSquares(float squares, const float* values) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) squares = __fmaf_rn(values[i], values[i], squares);
  return squares;
}

// Every thread gets the sum over the block. `sums` [kNormWarps] is shared memory, which nothing
// else uses until the next barrier.
__device__ inline float BlockSum(float value, float* sums) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(~0u, value, lanes);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int warp = 0; warp < kNormWarps; ++warp) total += sums[warp];
  return total;
}

// What a row of `width` values is multiplied by, beside its weights.
__device__ inline float NormFactor(float squares, int64_t width, float epsilon, float scale) {
  return scale / sqrtf(squares / static_cast<float>(width) + epsilon);
}

// `weight`: with its offset.
__device__ inline float Normalized(float value, float factor, float weight) {
  return __fmul_rn(value, __fmul_rn(factor, weight));
}

}  // namespace retroinfer::cuda
