// How a GPU keeps a weight in 4 bits. Free of CUDA; kernels call these functions, too.
//
// Codes: tiles of 16 rows, one behind the other; of a tile, steps of 128 columns, 1,024 bytes each.
// A step has 64 bytes for each row, rows 0 to 7 first, in words of eight codes: the words of
// columns 0, 32, 64, 96, then those of 8, 40, 72, 104, of 16 and so on, and of 24 and so on. So the
// 32 lanes of a warp read 512 consecutive bytes, 16 each, and a word of each of four lanes together
// is what 32 consecutive columns have. In a word the codes of even columns come first, so that
// masking a word, shifted by 0, 4, 8 or 12 bits, gives two consecutive columns.
//
// Groups: a word each (Int4GroupWord), for 16 rows of a tile at a time; groups of a row one behind
// the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gpu_worker/ops/model/int4.h"

namespace retroinfer::cuda {

inline constexpr int64_t kInt4TileRows = 16;
inline constexpr int64_t kInt4StepCols = 128;
inline constexpr int64_t kInt4StepWords = kInt4TileRows * kInt4StepCols / kInt4WordCodes;

// Whether the groups of a form are those that the kernels have: of 32 or 64 columns, or of whole
// steps.
constexpr bool HasInt4Groups(const WeightForm& form) {
  return form.group_cols == 32 || form.group_cols == 64 || form.group_cols % kInt4StepCols == 0;
}
// Columns of a group on the GPU: larger groups are repeated for each step.
constexpr int64_t Int4GroupCols(const WeightForm& form) {
  return form.group_cols == 32 || form.group_cols == 64 ? form.group_cols : kInt4StepCols;
}

constexpr int64_t Int4PaddedRows(int64_t rows) {
  return (rows + kInt4TileRows - 1) / kInt4TileRows * kInt4TileRows;
}
constexpr int64_t Int4PaddedCols(int64_t cols) {
  return (cols + kInt4StepCols - 1) / kInt4StepCols * kInt4StepCols;
}
constexpr int64_t Int4CodeBytes(int64_t rows, int64_t cols) {
  return Int4PaddedRows(rows) * Int4PaddedCols(cols) / 2;
}
constexpr int64_t Int4GroupBytes(int64_t rows, int64_t cols, int64_t group_cols) {
  return Int4PaddedRows(rows) * (Int4PaddedCols(cols) / group_cols) * 4;
}

// The word of (row, col) and of the seven columns behind it. REQUIRES: col % 8 == 0.
constexpr int64_t Int4WordAt(int64_t row, int64_t col, int64_t padded_cols) {
  const int64_t step = row / kInt4TileRows * (padded_cols / kInt4StepCols) + col / kInt4StepCols;
  const int64_t in_step = col % kInt4StepCols / kInt4WordCodes;
  return step * kInt4StepWords + row % kInt4TileRows * (kInt4StepWords / kInt4TileRows) +
         in_step % 4 * 4 + in_step / 4;
}
// Where the code of a column lies in its word, in bits.
constexpr int Int4ShiftOf(int64_t col) { return static_cast<int>(col % 8 / 2 * 4 + col % 2 * 16); }

// The word of a group; the row's next group is kInt4TileRows words on.
constexpr int64_t Int4GroupAt(int64_t row, int64_t group, int64_t num_groups) {
  return (row / kInt4TileRows * num_groups + group) * kInt4TileRows + row % kInt4TileRows;
}

// What BackendNeeds::weight_bytes says of the form: codes, and what groups take beyond what the
// form says of scales.
constexpr size_t Int4WeightBytes(const WeightForm& form, int64_t in, int64_t out) {
  const auto groups = static_cast<size_t>(Int4GroupBytes(out, in, Int4GroupCols(form)));
  return static_cast<size_t>(Int4CodeBytes(out, in)) + groups -
         std::min(groups, form.ScaleBytes(out, in));
}

}  // namespace retroinfer::cuda
