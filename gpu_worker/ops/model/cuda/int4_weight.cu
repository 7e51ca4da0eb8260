#include <cuda_bf16.h>

#include <algorithm>

#include "gpu_worker/ops/cuda/element.cuh"
#include "gpu_worker/ops/model/cuda/int4_layout.h"
#include "gpu_worker/ops/model/cuda/int4_weight.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostRows = 65'535;  // of a grid

// The word of eight codes, each in its place.
template <typename CodeOf>
__device__ uint32_t WordOf(const CodeOf& code_of) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < kInt4WordCodes; ++i) word |= code_of(i) << Int4ShiftOf(i);
  return word;
}

// blockIdx.x: words of a row; blockIdx.y: rows, padded ones too.
__global__ void __launch_bounds__(kThreads)
    PackInt4Kernel(const uint32_t* codes, const Int4Weight out, int64_t first) {
  const int64_t col = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kInt4WordCodes;
  if (col >= out.padded_cols) return;
  const int64_t row = first + blockIdx.y;
  const int64_t row_words = (out.cols + kInt4WordCodes - 1) / kInt4WordCodes;
  const bool exists = row < out.rows && col < out.cols;
  const uint32_t given = exists ? codes[row * row_words + col / kInt4WordCodes] : 0;
  out.codes[Int4WordAt(row, col, out.padded_cols)] =
      WordOf([given](int i) { return given >> 4 * i & 0xf; });
}

struct Numbers {
  const float* at;
  constexpr float operator()(int64_t i) const { return at[i]; }
};

// blockIdx.x: groups of a row; blockIdx.y: rows, padded ones too. A thread has a group.
__global__ void __launch_bounds__(kThreads)
    QuantizeInt4Kernel(const std::byte* in, DType dtype, int64_t in_stride, const Int4Weight out,
                       int64_t first_row, int* not_finite) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= out.num_groups()) return;
  const int64_t row = first_row + blockIdx.y;
  const int64_t begin = index * kInt4RoundedGroup;
  const int64_t left = row < out.rows ? out.cols - begin : 0;
  const int64_t count = left < kInt4RoundedGroup ? (left < 0 ? 0 : left) : kInt4RoundedGroup;
  float numbers[kInt4RoundedGroup];
  bool finite = true;
  for (int64_t i = 0; i < kInt4RoundedGroup; ++i) {
    numbers[i] = i < count ? LoadElement(in, dtype, row * in_stride + begin + i) : 0.0f;
    finite &= isfinite(numbers[i]) != 0;
  }
  if (!finite) {
    *not_finite = 1;
    return;
  }
  const Int4Group group = Int4Group::Of(count, Numbers{numbers});
  out.groups[Int4GroupAt(row, index, out.num_groups())] = Int4GroupWord(group.scale, group.zero);
  for (int64_t at = 0; at < kInt4RoundedGroup; at += kInt4WordCodes) {
    out.codes[Int4WordAt(row, begin + at, out.padded_cols)] =
        WordOf([&](int i) { return static_cast<uint32_t>(group.CodeOf(numbers[at + i])); });
  }
}

// blockIdx.x: words of a row; blockIdx.y: rows. Bound by memory: half a byte in, two bytes out for
// each weight.
__global__ void __launch_bounds__(kThreads)
    UnpackInt4Kernel(const Int4Weight weight, int64_t first, __nv_bfloat16* out, int64_t out_cols) {
  const int64_t col = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kInt4WordCodes;
  if (col >= out_cols) return;
  const int64_t row = first + blockIdx.y;
  const uint32_t word = weight.codes[Int4WordAt(row, col, weight.padded_cols)];
  const uint32_t group =
      weight.groups[Int4GroupAt(row, col / weight.group_cols, weight.num_groups())];
  const float scale = __uint_as_float(group & ~0x1fu);
  const int zero = static_cast<int>(group & 0x1f);
  float values[kInt4WordCodes];
#pragma unroll
  for (int i = 0; i < kInt4WordCodes; ++i) {
    const int code = static_cast<int>(word >> Int4ShiftOf(i) & 0xf);
    values[i] = col + i < weight.cols ? static_cast<float>(code - zero) * scale : 0.0f;
  }
  __nv_bfloat16* const out_row = out + int64_t{blockIdx.y} * out_cols;
  if (weight.columns == nullptr) {
    Store8(out_row, col, values);
    return;
  }
#pragma unroll
  for (int i = 0; i < kInt4WordCodes; ++i) {
    const int64_t at = col + i < weight.cols ? weight.columns[col + i] : col + i;
    out_row[at] = __float2bfloat16_rn(values[i]);
  }
}

// Of `columns` threads for each of `rows`, from row `at` on.
dim3 GridOf(int64_t columns, int64_t rows, int64_t at) {
  return dim3(static_cast<unsigned>((columns + kThreads - 1) / kThreads),
              static_cast<unsigned>(std::min(kMostRows, rows - at)));
}

}  // namespace

cudaError_t LaunchPackInt4(const uint32_t* codes, const Int4Weight& out, cudaStream_t stream) {
  const int64_t rows = Int4PaddedRows(out.rows);
  for (int64_t at = 0; at < rows; at += kMostRows) {
    const dim3 grid = GridOf(out.padded_cols / kInt4WordCodes, rows, at);
    PackInt4Kernel<<<grid, kThreads, 0, stream>>>(codes, out, at);
    if (const cudaError_t code = cudaGetLastError(); code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

cudaError_t LaunchQuantizeInt4(const MatrixView& in, const Int4Weight& out, int* not_finite,
                               cudaStream_t stream) {
  const int64_t rows = Int4PaddedRows(out.rows);
  for (int64_t at = 0; at < rows; at += kMostRows) {
    const dim3 grid = GridOf(out.num_groups(), rows, at);
    QuantizeInt4Kernel<<<grid, kThreads, 0, stream>>>(in.data, in.dtype, in.row_stride, out, at,
                                                      not_finite);
    if (const cudaError_t code = cudaGetLastError(); code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

cudaError_t LaunchUnpackInt4(const Int4Weight& weight, int64_t first, int64_t count, void* out,
                             int64_t out_cols, cudaStream_t stream) {
  auto* const rows = static_cast<__nv_bfloat16*>(out);
  for (int64_t at = 0; at < count; at += kMostRows) {
    const dim3 grid = GridOf((out_cols + kInt4WordCodes - 1) / kInt4WordCodes, count, at);
    UnpackInt4Kernel<<<grid, kThreads, 0, stream>>>(weight, first + at, rows + at * out_cols,
                                                    out_cols);
    if (const cudaError_t code = cudaGetLastError(); code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

}  // namespace retroinfer::cuda
