// Conversions between element types, int8 apart, which has scales (store_vectors.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kv/dtype.h"

namespace retroinfer::cpu {

// out[i] = in[i] as f32. `in` has `size` elements of `dtype`.
void ConvertToF32(DType dtype, const std::byte* in, float* out, int64_t size);

// out[i] = in[i] rounded to the nearest `dtype` (ties to even).
void ConvertFromF32(const float* in, DType dtype, std::byte* out, int64_t size);

}  // namespace retroinfer::cpu
