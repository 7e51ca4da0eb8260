// Elements of a matrix counted row by row, as runs that lie side by side.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gpu_worker/ops/matrix.h"

namespace retroinfer::cpu {

// Calls body(address, element of the first in the run, elements of the run) for elements
// [first, first + count) of `matrix`.
template <typename Body>
void ForRuns(const MatrixView& matrix, int64_t first, int64_t count, const Body& body) {
  const int64_t end = first + count;
  for (int64_t at = first; at < end;) {
    const int64_t row = at / matrix.cols;
    const int64_t col = at % matrix.cols;
    const int64_t run = std::min(end - at, matrix.cols - col);
    std::byte* const address = matrix.data + (row * matrix.row_stride + col) *
                                                 static_cast<int64_t>(DTypeBytes(matrix.dtype));
    body(address, at, run);
    at += run;
  }
}

}  // namespace retroinfer::cpu
