// Numbers of 8 bits as weights have them: e4m3 without infinities ("e4m3fn"), a sign, 4 bits of
// exponent (bias 7) and 3 of mantissa. The largest is 448; 0x7f and 0xff are NaN. Kernels call
// these functions, too: nothing in them may take the address of a constant, as std::min does.
#pragma once

#include <bit>
#include <cstdint>

namespace retroinfer {

inline constexpr float kE4m3Max = 448.0f;

constexpr bool IsE4m3Nan(uint8_t code) { return (code & 0x7f) == 0x7f; }

// REQUIRES: !IsE4m3Nan(code).
constexpr float FromE4m3(uint8_t code) {
  // As the top of a float whose exponent is 120 too small; right for subnormal codes, too.
  const uint32_t bits = uint32_t{code & 0x80u} << 24 | uint32_t{code & 0x7fu} << 20;
  return std::bit_cast<float>(bits) * 0x1p120f;
}

// The nearest code, ties to even, of a finite number; the largest for what is beyond it.
constexpr uint8_t ToE4m3(float value) {
  const uint32_t sign = std::bit_cast<uint32_t>(value) >> 24 & 0x80;
  float size = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0x7fffffff);
  size = size < kE4m3Max ? size : kE4m3Max;
  if (size < 0x1p-6f) {  // subnormal: steps of 2^-9, which adding 2^14 rounds to
    const float rounded = size + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(rounded) & 0xf));
  }
  uint32_t bits = std::bit_cast<uint32_t>(size);
  bits += 0x7ffff + (bits >> 20 & 1);
  return static_cast<uint8_t>(sign | ((bits >> 20) - (120u << 3)));
}

// The scale with which numbers of at most `largest` become e4m3. Every backend divides by it, so
// all get the same codes.
constexpr float QuantizationScale(float largest) {
  constexpr float kSmallest = 0x1p-126f;  // the smallest by which a division is exact to rounding
  const float scale = largest / kE4m3Max;
  return largest == 0 ? 1.0f : (scale < kSmallest ? kSmallest : scale);
}

}  // namespace retroinfer
