// A key or a value in eight bits, ScalePer::kVectorWithin (kv_format.h says what it means), by
// arithmetic that every backend does alike. Kernels call these functions, too: nothing in them may
// take the address of a constant, as std::min does.
#pragma once

#include <bit>
#include <cstdint>

namespace retroinfer {

// The first elements of a vector hold in their lowest bits the code of its exponent, lowest bit
// first, and count themselves as even numbers.
inline constexpr int32_t kExponentBits = 6;
inline constexpr int32_t kLeastExponent = -40;  // of code 0
inline constexpr int32_t kNanCode = (1 << kExponentBits) - 1;

// The code for a vector whose largest |number| is the float of these bits: of the least power of
// two with which that is at most 127, or kNanCode if there is none.
constexpr int32_t ExponentCode(uint32_t largest) {
  // Of 127 * 2^e = 1.984375 * 2^(e + 6), the biased exponent and the mantissa as a float.
  constexpr int32_t kExponentOf127 = 127 + 6;
  constexpr uint32_t kMantissaOf127 = 0x7e0000;
  const int32_t above = (largest & 0x7fffff) > kMantissaOf127 ? 1 : 0;
  const int32_t code =
      static_cast<int32_t>(largest >> 23) - kExponentOf127 + above - kLeastExponent;
  return code < 0 ? 0 : (code < kNanCode ? code : kNanCode);
}

// The power of two of a code, which elements are multiplied by; NaN for kNanCode.
constexpr float ScaleOfCode(int32_t code) {
  return std::bit_cast<float>(
      code == kNanCode ? 0x7fc00000u : static_cast<uint32_t>(code + kLeastExponent + 127) << 23);
}
// What numbers are multiplied by to become elements. REQUIRES: code != kNanCode.
constexpr float InverseScaleOfCode(int32_t code) {
  return std::bit_cast<float>(static_cast<uint32_t>(127 - code - kLeastExponent) << 23);
}

// Element `place` of a vector of this code whose number there is `number`. Ties go to even; of even
// numbers to those that are multiples of four.
constexpr int8_t ToElement(float number, int32_t place, int32_t code) {
  if (code == kNanCode) return static_cast<int8_t>(place < kExponentBits ? 1 : 0);
  // Between 2^23 and 2^24 a float has no fraction: the sum rounds.
  constexpr float kRounder = 12582912.0f;
  const float ratio = number * InverseScaleOfCode(code);  // exact, or far below a half
  if (place >= kExponentBits) return static_cast<int8_t>(ratio + kRounder - kRounder);
  const auto half = static_cast<int32_t>(ratio * 0.5f + kRounder - kRounder);
  const int32_t even = 2 * (half > 63 ? 63 : (half < -63 ? -63 : half));
  return static_cast<int8_t>(even | (code >> place & 1));
}

// What an element counts: a whole number, to be multiplied by the scale.
constexpr int32_t FromElement(int8_t element, int32_t place) {
  return place < kExponentBits ? element & ~1 : element;
}

// The code in the first eight elements of a vector, as one little-endian word.
constexpr int32_t CodeOf(uint64_t first_elements) {
  int32_t code = 0;
  for (int32_t i = 0; i < kExponentBits; ++i) {
    code |= static_cast<int32_t>(first_elements >> (8 * i) & 1) << i;
  }
  return code;
}

}  // namespace retroinfer
