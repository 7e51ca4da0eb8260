// RMSNorm (Zhang and Sennrich 2019): out = in / sqrt(mean(in^2) + epsilon) * weight * scale, row by
// row, or head by head of each row.
#pragma once

#include "gpu_worker/ops/matrix.h"

namespace retroinfer {

struct RmsNormArgs {
  MatrixView in;      // [n, heads * width], activation dtype
  MatrixView weight;  // [1, width], f32, bf16 or f16: every `width` columns are normalised alone
  float epsilon = 0;  // > 0
  float scale = 1;
  MatrixView out;  // [n, heads * width], activation dtype; may be `in`
};

}  // namespace retroinfer
