#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "gpu_worker/ops/cuda/element.cuh"
#include "gpu_worker/ops/model/cuda/fp8_activations.h"
#include "gpu_worker/ops/model/e4m3.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kCodesOfThread = 8;  // 16 bytes in, 8 out

// The largest of the block's values, in every thread.
__device__ float LargestOfBlock(float value) {
  __shared__ float of_warps[kWarps];
#pragma unroll
  for (int other = 16; other > 0; other /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, other));
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  float largest = of_warps[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) largest = fmaxf(largest, of_warps[warp]);
  return largest;
}

__device__ uint32_t FourCodes(float a, float b, float c, float d) {
  const __nv_fp8x2_storage_t low =
      __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
  const __nv_fp8x2_storage_t high =
      __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
  return uint32_t{low} | uint32_t{high} << 16;
}

// blockIdx.x is the row, which is read twice: the second time from the cache.
__global__ void __launch_bounds__(kThreads)
    QuantizeActivationsKernel(const __nv_bfloat16* in, int64_t in_stride,
                              const Fp8Activations out) {
  const __nv_bfloat16* const row = in + int64_t{blockIdx.x} * in_stride;
  const int64_t first = int64_t{threadIdx.x} * kCodesOfThread;
  constexpr int64_t kStep = int64_t{kThreads} * kCodesOfThread;
  float largest = 0;
  for (int64_t col = first; col < out.cols; col += kStep) {
    float values[kCodesOfThread];
    Load8(row, col, values);
#pragma unroll
    for (const float value : values) largest = fmaxf(largest, fabsf(value));
  }
  const float scale = QuantizationScale(LargestOfBlock(largest));
  const float factor = __frcp_rn(scale);
  if (threadIdx.x == 0) out.scales[blockIdx.x] = scale;
  uint8_t* const codes = out.codes + int64_t{blockIdx.x} * out.padded_cols;
  for (int64_t col = first; col < out.padded_cols; col += kStep) {
    float values[kCodesOfThread] = {};
    if (col < out.cols) Load8(row, col, values);
#pragma unroll
    for (float& value : values) value *= factor;
    // As weights: the middle two of every four have changed places.
    *reinterpret_cast<uint2*>(codes + col) =
        make_uint2(FourCodes(values[0], values[2], values[1], values[3]),
                   FourCodes(values[4], values[6], values[5], values[7]));
  }
}

}  // namespace

cudaError_t LaunchQuantizeActivations(const void* in, int64_t in_stride, const Fp8Activations& out,
                                      cudaStream_t stream) {
  QuantizeActivationsKernel<<<static_cast<unsigned>(out.rows), kThreads, 0, stream>>>(
      static_cast<const __nv_bfloat16*>(in), in_stride, out);
  return cudaGetLastError();
}

}  // namespace retroinfer::cuda
