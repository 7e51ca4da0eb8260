// RMSNorm (Zhang and Sennrich 2019): out = in / sqrt(mean(in^2) + epsilon) * weight, row by row.
#pragma once

#include "gpu_worker/ops/matrix.h"

namespace retroinfer {

struct RmsNormArgs {
  MatrixView in;      // [n, cols], activation dtype
  MatrixView weight;  // [1, cols], f32, bf16 or f16
  float epsilon = 0;  // > 0
  MatrixView out;     // [n, cols], activation dtype; may be `in`
};

}  // namespace retroinfer
