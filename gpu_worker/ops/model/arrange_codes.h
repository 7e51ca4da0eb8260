// Brings the 4-bit codes of a matrix from the order of a checkpoint into rows (int4.h): for
// loading, not for a step.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu_worker/device/device_span.h"
#include "gpu_worker/ops/model/int4.h"

namespace retroinfer {

struct ArrangeCodesArgs {
  DeviceSpan<const std::byte> in;  // order.Bytes(rows, cols), aligned to words
  CodeOrder order;
  int64_t rows = 0;
  int64_t cols = 0;
  // [cols]: column c of `out` is column columns[c] of `in`; empty: c itself.
  // REQUIRES: from 0 to cols - 1.
  DeviceSpan<const int32_t> columns;
  DeviceSpan<std::byte> out;  // kCodesInRows.Bytes(rows, cols), as `in`; must not overlap `in`
};

}  // namespace retroinfer
