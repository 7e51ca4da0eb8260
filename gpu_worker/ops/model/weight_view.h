// A matrix of a checkpoint, as it is stored there, in device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/log/check.h"
#include "gpu_worker/ops/matrix.h"
#include "gpu_worker/ops/model/weight_form.h"

namespace retroinfer {

// Row-major; rows of form.RowBytes(cols).
struct WeightView {
  std::byte* data = nullptr;  // device address
  WeightForm form = kBf16Weights;
  int64_t rows = 0;
  int64_t cols = 0;

  static WeightView Dense(DeviceSpan<std::byte> bytes, const WeightForm& form, int64_t rows,
                          int64_t cols) {
    RI_CHECK(bytes.size() >= form.Bytes(rows, cols));
    return {bytes.device_data(), form, rows, cols};
  }
  static WeightView Dense(DeviceSpan<std::byte> bytes, WeightType type, int64_t rows,
                          int64_t cols) {
    return Dense(bytes, FormOf(type), rows, cols);
  }
  // The same memory as a matrix of numbers: how norms and the embedding are read.
  // REQUIRES: !form.is_code().
  MatrixView Numbers() const {
    RI_CHECK(!form.is_code());
    return {data, form.number, rows, cols, cols};
  }
};

// What the codes of a matrix [rows][cols] are multiplied with, in host memory: (r, c) with
// values[r / rows_each * num_cols(cols) + c / cols_each].
struct WeightScales {
  static constexpr int64_t kBlock = 128;

  std::vector<float> values;      // finite and above zero
  std::vector<float> zeros = {};  // as many, finite, of a form that has them: in units of codes
  int64_t rows_each = 1;          // a power of two up to kBlock
  int64_t cols_each = 0;          // the form's group_cols, 0: a whole row has one; or kBlock

  int64_t num_rows(int64_t rows) const { return (rows + rows_each - 1) / rows_each; }
  int64_t num_cols(int64_t cols) const {
    return cols_each == 0 ? 1 : (cols + cols_each - 1) / cols_each;
  }
  // The place of an element's scale.
  size_t IndexOf(int64_t row, int64_t col, int64_t cols) const {
    const int64_t in_row = cols_each == 0 ? 0 : col / cols_each;
    return static_cast<size_t>(row / rows_each * num_cols(cols) + in_row);
  }
  float At(int64_t row, int64_t col, int64_t cols) const { return values[IndexOf(row, col, cols)]; }
};

}  // namespace retroinfer
