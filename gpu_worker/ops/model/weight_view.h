// A matrix of a checkpoint, as it is stored there, in device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/log/check.h"
#include "gpu_worker/ops/matrix.h"
#include "gpu_worker/ops/model/weight_type.h"

namespace retroinfer {

// Row-major, without gaps.
struct WeightView {
  std::byte* data = nullptr;  // device address
  WeightType type = WeightType::kBf16;
  int64_t rows = 0;
  int64_t cols = 0;

  static WeightView Dense(DeviceSpan<std::byte> bytes, WeightType type, int64_t rows,
                          int64_t cols) {
    RI_CHECK(bytes.size() >= static_cast<size_t>(rows * cols) * WeightTypeBytes(type));
    return {bytes.device_data(), type, rows, cols};
  }
  // The same memory as a matrix of numbers: how norms and the embedding are read.
  MatrixView Numbers() const { return {data, ElementType(type), rows, cols, cols}; }
};

}  // namespace retroinfer
