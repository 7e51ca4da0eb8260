#include <algorithm>

#include "gpu_worker/ops/cuda/element.cuh"
#include "gpu_worker/ops/model/cuda/convert_weight.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 256;

// blockIdx.x is the row.
__global__ void __launch_bounds__(kThreads)
    ConvertWeightKernel(const std::byte* in, DType dtype, int64_t in_stride, int64_t in_cols,
                        __nv_bfloat16* out, int64_t out_cols, float* out_f32) {
  const int64_t row = blockIdx.x;
  for (int64_t i = threadIdx.x; i < out_cols; i += kThreads) {
    const float value = i < in_cols ? LoadElement(in, dtype, row * in_stride + i) : 0.0f;
    const __nv_bfloat16 rounded = __float2bfloat16_rn(value);
    out[row * out_cols + i] = rounded;
    if (out_f32 != nullptr && i < in_cols) out_f32[row * in_cols + i] = __bfloat162float(rounded);
  }
}

}  // namespace

cudaError_t LaunchConvertWeight(const MatrixView& in, void* out, int64_t out_cols, float* out_f32,
                                cudaStream_t stream) {
  ConvertWeightKernel<<<static_cast<unsigned>(in.rows), kThreads, 0, stream>>>(
      in.data, in.dtype, in.row_stride, in.cols, static_cast<__nv_bfloat16*>(out), out_cols,
      out_f32);
  return cudaGetLastError();
}

}  // namespace retroinfer::cuda
