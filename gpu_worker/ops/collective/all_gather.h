// Columns of a matrix that ranks have side by side, brought together on all of them: logits.
#pragma once

#include "gpu_worker/ops/collective/tensor_parallel.h"
#include "gpu_worker/ops/matrix.h"

namespace retroinfer {

// Ranks call it in the same order with the same `out`'s shape. Each has columns
// ShareOf(rank, out.cols, unit).
struct AllGatherArgs {
  MatrixView in;     // [n, the rank's columns], f32; may be these columns of `out`
  MatrixView out;    // [n, cols], f32
  int64_t unit = 1;  // columns that belong together
};

}  // namespace retroinfer
