// Numbers of 16 bits in host memory.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace retroinfer {

inline float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Rounds to the nearest, ties to even; what is no number stays that.
inline uint16_t ToBf16(float number) {
  const auto bits = std::bit_cast<uint32_t>(number);
  constexpr uint32_t kQuiet = 1u << 22;
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits | kQuiet) >> 16);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline float FromF16(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = half >> 10 & 31;
  const uint32_t mantissa = half & 0x3ff;
  if (exponent == 31) {
    if (mantissa != 0) return std::numeric_limits<float>::quiet_NaN();
    return std::copysign(std::numeric_limits<float>::infinity(), sign != 0 ? -1.0f : 1.0f);
  }
  if (exponent == 0) return std::ldexp(static_cast<float>(mantissa), -24) * (sign != 0 ? -1 : 1);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

}  // namespace retroinfer
