// Activations in 8 bits, for products with weights in 8 bits (fp8_weight.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace retroinfer::cuda {

struct Fp8Activations {
  uint8_t* codes =
      nullptr;  // [rows][padded_cols], columns in a weight's order; those added are zero
  float* scales = nullptr;  // [rows]
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t padded_cols = 0;  // a multiple of kFp8ColumnAlignment, less than 16 above cols
};

// Rounds rows of bf16, `in_stride` elements apart, each with the scale QuantizationScale of its
// largest. A row with a number that is not finite has NaN codes or a scale that makes NaN of it.
//
// REQUIRES: rows of `in` are aligned to 16 bytes; out.cols is a multiple of 8.
cudaError_t LaunchQuantizeActivations(const void* in, int64_t in_stride, const Fp8Activations& out,
                                      cudaStream_t stream);

}  // namespace retroinfer::cuda
