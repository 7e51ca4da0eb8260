// A weight in 4 bits in a GPU's memory (int4_layout.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu_worker/ops/matrix.h"

namespace retroinfer::cuda {

struct Int4Weight {
  uint32_t* codes = nullptr;
  uint32_t* groups = nullptr;
  const int32_t* columns = nullptr;  // [cols]: as WeightScales has them; null: in order
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t padded_cols = 0;
  int64_t group_cols = 0;

  constexpr int64_t num_groups() const { return padded_cols / group_cols; }
};

// Copies codes of `out`'s rows and columns, in rows of whole words as WeightForm has them, to
// out.codes; what is added is zero.
cudaError_t LaunchPackInt4(const uint32_t* codes, const Int4Weight& out, cudaStream_t stream);

// Rounds `in` to codes and groups (Int4Group). *not_finite becomes 1 if a number is not, and stays
// else.
//
// REQUIRES: out.group_cols is kInt4RoundedGroup; out.columns is null.
cudaError_t LaunchQuantizeInt4(const MatrixView& in, const Int4Weight& out, int* not_finite,
                               cudaStream_t stream);

// Writes `count` rows from `first` on as bf16, numbers rounded, in the order of input features:
// out[count][out_cols], columns beyond weight.cols zero.
//
// REQUIRES: out_cols is a multiple of 8, at most weight.padded_cols.
cudaError_t LaunchUnpackInt4(const Int4Weight& weight, int64_t first, int64_t count, void* out,
                             int64_t out_cols, cudaStream_t stream);

}  // namespace retroinfer::cuda
