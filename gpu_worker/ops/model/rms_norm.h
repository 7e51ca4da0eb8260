// RMSNorm (Zhang and Sennrich 2019):
//   out = in / sqrt(mean(in^2) + epsilon) * (weight + offset) * scale,
// row by row, or head by head of each row; or the same is added to out.
#pragma once

#include "gpu_worker/ops/matrix.h"

namespace retroinfer {

struct RmsNormArgs {
  MatrixView in;      // [n, heads * width], activation dtype
  MatrixView weight;  // [1, width], f32, bf16 or f16: every `width` columns are normalised alone
  float epsilon = 0;  // > 0
  float scale = 1;
  float weight_offset = 0;  // added to each weight: Gemma stores weights less 1
  MatrixView out;           // [n, heads * width], activation dtype; may be `in`
  // Adds to `out` (the residual connection) instead of overwriting it; `out` is not `in` then.
  bool accumulate = false;
};

}  // namespace retroinfer
