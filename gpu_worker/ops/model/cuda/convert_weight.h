// Copies a weight into the form in which it is multiplied.
#pragma once

#include <cuda_runtime_api.h>

#include "gpu_worker/ops/matrix.h"

namespace retroinfer::cuda {

// Rounds `in` to bf16 rows of `out_cols`, those beyond in.cols zero, and, if `out_f32` is not null,
// writes the rounded values there as f32, without padding.
cudaError_t LaunchConvertWeight(const MatrixView& in, void* out, int64_t out_cols, float* out_f32,
                                cudaStream_t stream);

}  // namespace retroinfer::cuda
