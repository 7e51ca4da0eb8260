// Writes vectors of the index as a VectorFormat stores them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kv/kv_format.h"

namespace retroinfer::cpu {

// Rounds `count` vectors of head_dim numbers to `format` (which says how), and writes them with
// their scales, ArrayBytes(count, head_dim) bytes.
//
// REQUIRES: `count` is a multiple of 8 and head_dim of 16, so that there is no padding; scales are
// of nothing, or of each vector in int8.
void StoreVectors(const float* vectors, const VectorFormat& format, size_t count, uint32_t head_dim,
                  std::byte* out);

}  // namespace retroinfer::cpu
