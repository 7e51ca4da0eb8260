// Elements of the dtypes that matrices have, as kernels read and write them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "common/kv/dtype.h"

namespace retroinfer::cuda {

// 16 bytes: what one thread moves at a time where rows are aligned.
struct alignas(16) Bf16x8 {
  __nv_bfloat162 pair[4];
};

__device__ inline float LoadElement(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[i];
    case DType::kBf16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    case DType::kF16:
      return __half2float(static_cast<const __half*>(data)[i]);
    case DType::kInt8:
      break;
  }
  return 0.0f;
}

// `dtype` is f32 or bf16.
__device__ inline void StoreElement(void* data, DType dtype, int64_t i, float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value);
  }
}

// `at` must be a multiple of 8, and the address a multiple of 16 bytes.
__device__ inline void Load8(const __nv_bfloat16* data, int64_t at, float* values) {
  const Bf16x8 packed = *reinterpret_cast<const Bf16x8*>(data + at);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = __bfloat1622float2(packed.pair[i]);
    values[2 * i] = two.x;
    values[2 * i + 1] = two.y;
  }
}

__device__ inline void Store8(__nv_bfloat16* data, int64_t at, const float* values) {
  Bf16x8 packed;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    packed.pair[i] = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
  }
  *reinterpret_cast<Bf16x8*>(data + at) = packed;
}

}  // namespace retroinfer::cuda
