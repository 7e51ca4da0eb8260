// A view of a row-major matrix in device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kv/dtype.h"
#include "gpu_worker/device/device_span.h"

namespace retroinfer {

// Elements of row r, column c lie at `data + (r * row_stride + c) * DTypeBytes(dtype)`.
struct MatrixView {
  std::byte* data = nullptr;  // device address
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;  // elements; >= cols

  static MatrixView Dense(DeviceSpan<std::byte> bytes, DType dtype, int64_t rows, int64_t cols) {
    RI_CHECK(bytes.size() >= static_cast<size_t>(rows * cols) * DTypeBytes(dtype));
    return {bytes.device_data(), dtype, rows, cols, cols};
  }
  MatrixView Rows(int64_t first, int64_t count) const {
    RI_DCHECK(first + count <= rows);
    return {data + first * row_stride * static_cast<int64_t>(DTypeBytes(dtype)), dtype, count, cols,
            row_stride};
  }
  MatrixView Columns(int64_t first, int64_t count) const {
    RI_DCHECK(first + count <= cols);
    return {data + first * static_cast<int64_t>(DTypeBytes(dtype)), dtype, rows, count, row_stride};
  }
};

}  // namespace retroinfer
