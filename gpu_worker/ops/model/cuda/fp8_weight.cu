#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "gpu_worker/ops/cuda/element.cuh"
#include "gpu_worker/ops/model/cuda/fp8_weight.h"
#include "gpu_worker/ops/model/e4m3.h"
#include "gpu_worker/ops/model/weight_view.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kCodesOfThread = 8;  // 8 bytes in, 16 out

// Where column `col` of a row lies.
__device__ int64_t PlaceOf(int64_t col) {
  const int64_t in_four = col % 4;
  return in_four == 1 ? col + 1 : in_four == 2 ? col - 1 : col;
}

__device__ float NumberOf(uint8_t code) {
  const __half_raw half = __nv_cvt_fp8_to_halfraw(code, __NV_E4M3);
  return __half2float(__half(half));
}

// blockIdx.x is the row.
__global__ void __launch_bounds__(kThreads)
    PackFp8Kernel(const uint8_t* codes, const Fp8Weight out, int* has_nan) {
  const int64_t row = blockIdx.x;
  bool found = false;
  for (int64_t col = threadIdx.x; col < out.padded_cols; col += kThreads) {
    const uint8_t code = col < out.cols ? codes[row * out.cols + col] : 0;
    found |= IsE4m3Nan(code);
    out.codes[row * out.padded_cols + PlaceOf(col)] = code;
  }
  if (found) *has_nan = 1;
}

// blockIdx.x is the row.
__global__ void __launch_bounds__(kThreads)
    QuantizeFp8Kernel(const std::byte* in, DType dtype, int64_t in_stride, const Fp8Weight out,
                      int* has_nan) {
  __shared__ float largest_of[kThreads];
  const int64_t row = blockIdx.x;
  float largest = 0;
  bool finite = true;
  for (int64_t col = threadIdx.x; col < out.cols; col += kThreads) {
    const float value = LoadElement(in, dtype, row * in_stride + col);
    finite &= isfinite(value) != 0;
    largest = fmaxf(largest, fabsf(value));
  }
  if (!finite) *has_nan = 1;
  largest_of[threadIdx.x] = largest;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      largest_of[threadIdx.x] = fmaxf(largest_of[threadIdx.x], largest_of[threadIdx.x + half]);
    }
    __syncthreads();
  }
  const float scale = QuantizationScale(largest_of[0]);
  if (threadIdx.x == 0) out.scales[row] = scale;
  for (int64_t col = threadIdx.x; col < out.padded_cols; col += kThreads) {
    float value = 0;
    if (col < out.cols) value = __fdiv_rn(LoadElement(in, dtype, row * in_stride + col), scale);
    out.codes[row * out.padded_cols + PlaceOf(col)] = ToE4m3(value);
  }
}

// blockIdx.x: columns; blockIdx.y: rows. Bound by memory: a byte in, two out for each weight.
__global__ void __launch_bounds__(kThreads)
    UnpackFp8Kernel(const Fp8Weight weight, int64_t first, __nv_bfloat16* out, int64_t out_cols) {
  const int64_t col = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCodesOfThread;
  if (col >= out_cols) return;
  const int64_t row = first + blockIdx.y;
  const uint2 packed =
      *reinterpret_cast<const uint2*>(weight.codes + row * weight.padded_cols + col);
  const int64_t in_row = weight.scale_cols == 1 ? 0 : col / WeightScales::kBlock;
  const float scale = weight.scales[(row >> weight.scale_shift) * weight.scale_cols + in_row];
  float values[kCodesOfThread];
#pragma unroll
  for (int i = 0; i < kCodesOfThread; ++i) {
    const uint32_t word = i < 4 ? packed.x : packed.y;
    const int place = i % 4 == 1 ? 2 : i % 4 == 2 ? 1 : i % 4;
    values[i] = NumberOf(static_cast<uint8_t>(word >> 8 * place)) * scale;
  }
  Store8(out + int64_t{blockIdx.y} * out_cols, col, values);
}

}  // namespace

cudaError_t LaunchPackFp8(const uint8_t* codes, const Fp8Weight& out, int* has_nan,
                          cudaStream_t stream) {
  PackFp8Kernel<<<static_cast<unsigned>(out.rows), kThreads, 0, stream>>>(codes, out, has_nan);
  return cudaGetLastError();
}

cudaError_t LaunchQuantizeFp8(const MatrixView& in, const Fp8Weight& out, int* has_nan,
                              cudaStream_t stream) {
  QuantizeFp8Kernel<<<static_cast<unsigned>(out.rows), kThreads, 0, stream>>>(
      in.data, in.dtype, in.row_stride, out, has_nan);
  return cudaGetLastError();
}

cudaError_t LaunchUnpackFp8(const Fp8Weight& weight, int64_t first, int64_t count, void* out,
                            int64_t out_cols, cudaStream_t stream) {
  constexpr int64_t kMostRows = 65'535;  // of a grid
  constexpr int64_t kColsOfBlock = kThreads * kCodesOfThread;
  const auto blocks = static_cast<unsigned>((out_cols + kColsOfBlock - 1) / kColsOfBlock);
  auto* const rows = static_cast<__nv_bfloat16*>(out);
  for (int64_t at = 0; at < count; at += kMostRows) {
    const dim3 grid(blocks, static_cast<unsigned>(std::min(kMostRows, count - at)));
    UnpackFp8Kernel<<<grid, kThreads, 0, stream>>>(weight, first + at, rows + at * out_cols,
                                                   out_cols);
    if (const cudaError_t code = cudaGetLastError(); code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

}  // namespace retroinfer::cuda
