// Floats of 4 bits, "e2m1" (OCP Microscaling Formats 1.0): a sign, 2 bits of exponent (bias 1) and
// one of mantissa; and the exponents that MXFP4 puts beside them, "e8m0".
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

namespace retroinfer {

inline constexpr std::array<float, 16> kE2m1 = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                                -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
inline constexpr uint8_t kE2m1Largest = 7;  // its code

// Two to the power of `exponent` less 127; 255 is no number.
inline float FromE8m0(uint8_t exponent) {
  if (exponent == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0f, exponent - 127);
}

}  // namespace retroinfer
