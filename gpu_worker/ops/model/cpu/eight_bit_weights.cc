#include "gpu_worker/ops/model/cpu/eight_bit_weights.h"

#include <algorithm>
#include <cmath>

#include "gpu_worker/ops/model/e4m3.h"
#include "gpu_worker/ops/model/linear_check.h"

namespace retroinfer::cpu {

absl::Status Dequantize(const LinearWeights& weights, int64_t first_row, int64_t num_rows,
                        float* out) {
  const WeightForm& form = weights.weight.form;
  const int64_t cols = weights.weight.cols;
  const WeightScales& scales = weights.scales;
  const int64_t each = scales.cols_each == 0 ? cols : scales.cols_each;
  for (int64_t row = first_row; row < first_row + num_rows; ++row, out += cols) {
    form.decode(weights.weight.data + form.Bytes(row, cols), cols, out);
    bool has_nan = false;
    for (int64_t first = 0; first < cols; first += each) {
      const size_t index = scales.IndexOf(row, first, cols);
      const float scale = scales.values[index];
      const float zero = form.has_zeros ? scales.zeros[index] : 0.0f;
      const int64_t end = std::min(cols, first + each);
      for (int64_t col = first; col < end; ++col) {
        has_nan |= std::isnan(out[col]);
        out[col] = (out[col] - zero) * scale;
      }
    }
    if (has_nan) return NotFinite();
  }
  return absl::OkStatus();
}

absl::Status RoundToFp8(int64_t num_rows, int64_t cols, float* rows) {
  for (int64_t row = 0; row < num_rows; ++row, rows += cols) {
    float largest = 0;
    bool finite = true;
    for (int64_t col = 0; col < cols; ++col) {
      finite &= std::isfinite(rows[col]);
      largest = std::max(largest, std::fabs(rows[col]));
    }
    if (!finite) return NotFinite();
    const float scale = QuantizationScale(largest);
    for (int64_t col = 0; col < cols; ++col)
      rows[col] = FromE4m3(ToE4m3(rows[col] / scale)) * scale;
  }
  return absl::OkStatus();
}

}  // namespace retroinfer::cpu
