#include "gpu_worker/ops/cpu/store_vectors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "common/log/check.h"
#include "gpu_worker/ops/cpu/convert.h"

namespace retroinfer::cpu {
namespace {

constexpr float kLargestF16 = 65504.0f;
constexpr float kLargestElement = 127.0f;

// Largest |number|; infinity or NaN if one of them is that.
float LargestOf(const float* numbers, uint32_t count) {
  // As integers, so that NaN is the largest of all.
  uint32_t largest = 0;
  for (uint32_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(numbers[i]) & 0x7fffffff);
  }
  return std::bit_cast<float>(largest);
}

// The smallest f16 that is at least `value`, 0 or more; the largest one that there is.
float RoundUpToF16(float value) {
  constexpr int kLeastExponent = -14, kMantissaBits = 10;
  if (value == 0) return 0;
  const int exponent = std::max(std::ilogb(value), kLeastExponent);
  const float units = std::ceil(std::ldexp(value, kMantissaBits - exponent));
  return std::min(std::ldexp(units, exponent - kMantissaBits), kLargestF16);
}

// Writes the elements of one vector; returns its scale.
float StoreInt8(const float* vector, uint32_t head_dim, int8_t* out) {
  const float largest = LargestOf(vector, head_dim);
  if (largest == 0 || !std::isfinite(largest)) {
    std::fill_n(out, head_dim, int8_t{0});
    return largest == 0 ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  const float scale = RoundUpToF16(largest / kLargestElement);
  // Between 2^23 and 2^24 a float has no fraction: the sum rounds, ties to even.
  constexpr float kRounder = 12582912.0f;
  for (uint32_t i = 0; i < head_dim; ++i) {
    const float ratio = std::clamp(vector[i] / scale, -kLargestElement, kLargestElement);
    out[i] = static_cast<int8_t>(ratio + kRounder - kRounder);
  }
  return scale;
}

}  // namespace

void StoreVectors(const float* vectors, const VectorFormat& format, size_t count, uint32_t head_dim,
                  std::byte* out) {
  if (!format.has_scales()) {
    ConvertFromF32(vectors, format.element, out, static_cast<int64_t>(count * head_dim));
    return;
  }
  RI_CHECK(format == kInt8Vectors && count % 8 == 0 && head_dim % 16 == 0);
  auto* const elements = reinterpret_cast<int8_t*>(out);
  std::byte* const scales = out + format.ScalesOffset(count, head_dim);
  for (size_t i = 0; i < count; ++i) {
    const float scale = StoreInt8(vectors + i * head_dim, head_dim, elements + i * head_dim);
    ConvertFromF32(&scale, format.scale, scales + i * DTypeBytes(format.scale), 1);
  }
}

}  // namespace retroinfer::cpu
