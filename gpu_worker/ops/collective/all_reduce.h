// The sum of a matrix over ranks, on all of them.
//
//   out = in of rank 0 + in of rank 1 + ..., or out += that,
//
// added in this order in f32 and rounded once: the same bits on all ranks and in all runs, as long
// as `out` of an `out +=` is the same on all ranks.
#pragma once

#include "gpu_worker/ops/matrix.h"

namespace retroinfer {

// Ranks call it in the same order with matrices of the same shape.
struct AllReduceArgs {
  MatrixView in;            // [n, cols], f32 or bf16
  MatrixView out;           // the same; may be `in`, unless it is added to
  bool accumulate = false;  // adds to `out` (the residual connection) instead of overwriting it
};

}  // namespace retroinfer
