// Codes of weights on their way to the numbers that the CPU multiplies.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "gpu_worker/ops/model/linear.h"

namespace retroinfer::cpu {

// Writes rows [first_row, first_row + num_rows) of a weight of codes, of any form, as numbers,
// out[num_rows][cols].
//
// Returns: as NotFinite.
absl::Status Dequantize(const LinearWeights& weights, int64_t first_row, int64_t num_rows,
                        float* out);

// Replaces rows[num_rows][cols] by what is left of them in e4m3 with a scale for each row.
//
// Returns: as NotFinite.
absl::Status RoundToFp8(int64_t num_rows, int64_t cols, float* rows);

}  // namespace retroinfer::cpu
