// Rows of keys and values as the kernels of clustering read them: a warp a row.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace retroinfer::cuda {

inline constexpr unsigned kAllLanes = 0xffffffff;

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ T FromFloat(float value);
template <>
__device__ inline float FromFloat<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// A few consecutive elements, read and written at once.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Elements {
  T values[kCount];
};

// Sum over the warp, in an order that does not change.
__device__ inline float WarpSum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

// Rows of one segment: row t of head h at data + h * head_stride + t * d.
template <typename T>
struct Rows {
  const T* data;
  int64_t head_stride;  // elements
};

// This lane's elements of a row.
template <typename T, int kDim>
__device__ void AddRow(const Elements<T, kDim / 32>& row, float (&sum)[kDim / 32]) {
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) sum[i] += ToFloat(row.values[i]);
}

template <typename T, int kDim>
__device__ Elements<T, kDim / 32> LaneOfRow(const T* rows, int64_t row) {
  return reinterpret_cast<const Elements<T, kDim / 32>*>(rows + row * kDim)[threadIdx.x % 32];
}

}  // namespace retroinfer::cuda
