// Weights in 8 bits on a GPU: e4m3 codes in rows of padded_in, a multiple of kFp8ColumnAlignment.
// In every four of a row the middle two have changed places, as the kernel for few rows wants them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu_worker/ops/matrix.h"

namespace retroinfer::cuda {

struct Fp8Weight {
  uint8_t* codes = nullptr;  // [rows][padded_cols]; those added are zero
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t padded_cols = 0;
  // As SkinnyGemmLaunch has them.
  float* scales = nullptr;
  int64_t scale_cols = 0;
  int scale_shift = 0;
};

// Copies `codes` [rows][cols] to out.codes; *has_nan becomes 1 if there is one, and stays else.
cudaError_t LaunchPackFp8(const uint8_t* codes, const Fp8Weight& out, int* has_nan,
                          cudaStream_t stream);

// Rounds `in` to codes and a scale for each row (out.scale_shift is 0, out.scale_cols 1).
// *has_nan becomes 1 if a number is not finite, and stays else.
cudaError_t LaunchQuantizeFp8(const MatrixView& in, const Fp8Weight& out, int* has_nan,
                              cudaStream_t stream);

// Writes `count` rows from `first` on as bf16, codes times scales rounded, in their own order of
// columns: out[count][out_cols], columns beyond weight.cols zero.
//
// REQUIRES: out_cols is a multiple of 8, at most weight.padded_cols.
cudaError_t LaunchUnpackFp8(const Fp8Weight& weight, int64_t first, int64_t count, void* out,
                            int64_t out_cols, cudaStream_t stream);

}  // namespace retroinfer::cuda
