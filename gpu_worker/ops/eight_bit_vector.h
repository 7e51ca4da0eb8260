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
  // Bounds on what comes in, not on what comes out: for sm_90a the assembler of CUDA 13.0 makes of
  // a minimum, a maximum with 0 and a comparison with the minimum's bound one instruction that says
  // the wrong thing.
  constexpr uint32_t kLeast = static_cast<uint32_t>(kExponentOf127 + kLeastExponent) << 23;
  constexpr uint32_t kMost = kLeast + (static_cast<uint32_t>(kNanCode) << 23);
  const uint32_t most = largest < kMost ? largest : kMost;
  const uint32_t size = most > kLeast ? most : kLeast;
  const int32_t above = (size & 0x7fffff) > kMantissaOf127 ? 1 : 0;
  return static_cast<int32_t>(size >> 23) - kExponentOf127 + above - kLeastExponent;
}

// The power of two of a code, which elements are multiplied by; NaN for kNanCode.
constexpr float ScaleOfCode(int32_t code) {
  return std::bit_cast<float>(
      code == kNanCode ? 0x7fc00000u : static_cast<uint32_t>(code + kLeastExponent + 127) << 23);
}
// What numbers are multiplied by to become elements; 0 for kNanCode.
constexpr float InverseScaleOfCode(int32_t code) {
  return std::bit_cast<float>(
      code == kNanCode ? 0u : static_cast<uint32_t>(127 - code - kLeastExponent) << 23);
}

// Element `place` of a vector of this code whose number there is `number`. Ties go to even; of even
// numbers to those that are multiples of four.
constexpr int8_t ToElement(float number, int32_t place, int32_t code) {
  constexpr float kRounder = 12582912.0f;  // from 2^23 to 2^24 a float has no fraction: sums round
  const float ratio = number * InverseScaleOfCode(code);  // exact, or far below a half
  const float finite = ratio >= -127.0f && ratio <= 127.0f ? ratio : 0.0f;
  const bool is_even = place < kExponentBits;
  const auto nearest = static_cast<int32_t>(finite * (is_even ? 0.5f : 1.0f) + kRounder - kRounder);
  const int32_t half = nearest > 63 ? 63 : (nearest < -63 ? -63 : nearest);
  return static_cast<int8_t>(is_even ? 2 * half | (code >> (is_even ? place : 0) & 1) : nearest);
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
