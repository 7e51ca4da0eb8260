// Vectors of the index as a VectorFormat stores them, by plain arithmetic.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "common/kv/kv_format.h"
#include "tests/support/device_data.h"

namespace retroinfer::test_support {

// The scale of a vector in int8, as bits of f16.
inline uint16_t Int8ScaleOf(std::span<const float> vector) {
  constexpr uint16_t kLargest = 0x7bff;
  float largest = 0;
  for (const float number : vector) {
    if (!std::isfinite(number)) return 0x7e00;
    largest = std::max(largest, std::abs(number));
  }
  // f16 of no sign are in the order of their bits.
  uint16_t bits = ToF16(std::min(largest / 127, 65504.0f));
  while (bits < kLargest && FromF16(bits) < largest / 127) ++bits;
  return bits;
}

// `vectors` in arrays of 64, as meta blocks and segments have them.
inline std::vector<std::byte> StoredVectors(std::span<const float> vectors,
                                            const VectorFormat& format, uint32_t head_dim) {
  if (!format.has_scales()) return ToBytes(vectors, format.element);
  const size_t array = 64 * size_t{head_dim};
  std::vector<std::byte> bytes;
  for (size_t first = 0; first < vectors.size(); first += array) {
    std::vector<uint16_t> scales;
    for (size_t i = 0; i < 64; ++i) {
      const auto vector = vectors.subspan(first + i * head_dim, head_dim);
      scales.push_back(Int8ScaleOf(vector));
      const float scale = FromF16(scales.back());
      for (const float number : vector) {
        const bool has_number = scale > 0;  // neither 0 nor NaN
        const float ratio = has_number ? std::clamp(number / scale, -127.0f, 127.0f) : 0.0f;
        bytes.push_back(static_cast<std::byte>(static_cast<int8_t>(std::nearbyint(ratio))));
      }
    }
    const auto* const begin = reinterpret_cast<const std::byte*>(scales.data());
    bytes.insert(bytes.end(), begin, begin + 2 * scales.size());
  }
  return bytes;
}

// Number `i` of an array of 64 vectors.
inline float StoredNumber(const std::byte* array, const VectorFormat& format, uint32_t head_dim,
                          size_t i) {
  if (!format.has_scales()) {
    return FromElement(array + i * DTypeBytes(format.element), format.element);
  }
  uint16_t scale;
  std::memcpy(&scale, array + format.ScalesOffset(64, head_dim) + i / head_dim * 2, sizeof(scale));
  return FromF16(scale) * static_cast<float>(std::bit_cast<int8_t>(array[i]));
}

}  // namespace retroinfer::test_support
