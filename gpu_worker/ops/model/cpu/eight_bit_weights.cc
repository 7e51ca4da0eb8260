#include "gpu_worker/ops/model/cpu/eight_bit_weights.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "gpu_worker/ops/model/e4m3.h"
#include "gpu_worker/ops/model/linear_check.h"

namespace retroinfer::cpu {
namespace {

// What each code stands for; NaN is told apart by its code.
constexpr std::array<float, 256> kNumbers = [] {
  std::array<float, 256> numbers{};
  for (int code = 0; code < 256; ++code) {
    numbers[static_cast<size_t>(code)] = FromE4m3(static_cast<uint8_t>(code));
  }
  return numbers;
}();

}  // namespace

absl::Status Dequantize(const LinearWeights& weights, int64_t first_row, int64_t num_rows,
                        float* out) {
  const int64_t cols = weights.weight.cols;
  const WeightScales& scales = weights.scales;
  const int64_t each = scales.cols_each == 0 ? cols : scales.cols_each;
  const auto* codes = reinterpret_cast<const uint8_t*>(weights.weight.data) + first_row * cols;
  for (int64_t row = first_row; row < first_row + num_rows; ++row) {
    bool has_nan = false;
    for (int64_t first = 0; first < cols; first += each) {
      const float scale = scales.At(row, first, cols);
      const int64_t end = std::min(cols, first + each);
      for (int64_t col = first; col < end; ++col) {
        has_nan |= IsE4m3Nan(codes[col]);
        out[col] = kNumbers[codes[col]] * scale;
      }
    }
    if (has_nan) return NotFinite();
    codes += cols;
    out += cols;
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
