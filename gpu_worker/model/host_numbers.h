// Numbers of tensors that lie in the host's memory, as a checkpoint stores them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu_worker/ops/model/weight_type.h"

namespace retroinfer {

// The numbers in `bytes`, which need no alignment.
// REQUIRES: !HasScales(type).
std::vector<float> NumbersOf(WeightType type, std::span<const std::byte> bytes);

// Multiplies the elements [begin, begin + n) of a row-major tensor, n of which `bytes` holds, by a
// power of two for each row of `cols`. Exact, but for numbers that become smaller than the type's
// smallest normal one.
//
// REQUIRES: `type` is kF32 or kBf16; an exponent for each row that is touched.
void ScaleRows(WeightType type, std::span<std::byte> bytes, size_t begin, size_t cols,
               std::span<const int8_t> exponents);

}  // namespace retroinfer
