// Keys and values as pages hold them, by plain arithmetic.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <vector>

#include "common/kv/kv_format.h"
#include "tests/support/device_data.h"

namespace retroinfer::test_support {

// One vector as kEightBitTokens stores it.
inline std::vector<std::byte> EightBitVector(std::span<const float> vector) {
  double largest = 0;
  bool is_finite = true;
  for (const float number : vector) {
    is_finite = is_finite && std::isfinite(number);
    largest = std::max(largest, std::abs(double{number}));
  }
  int code = 0;
  while (code < 63 && largest > std::ldexp(127.0, code - 40)) ++code;
  if (!is_finite) code = 63;
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < vector.size(); ++i) {
    int element = 0;
    if (code < 63) {
      const double ratio = std::ldexp(double{vector[i]}, 40 - code);
      element = static_cast<int>(i < 6 ? 2 * std::clamp(std::nearbyint(ratio / 2), -63.0, 63.0)
                                       : std::nearbyint(ratio));
    }
    if (i < 6) element |= code >> i & 1;
    bytes.push_back(static_cast<std::byte>(element));
  }
  return bytes;
}

// Its numbers.
inline std::vector<float> EightBitNumbers(std::span<const std::byte> vector) {
  int code = 0;
  for (size_t i = 0; i < 6; ++i) code |= (static_cast<int>(vector[i]) & 1) << i;
  std::vector<float> numbers;
  for (size_t i = 0; i < vector.size(); ++i) {
    const int element = std::bit_cast<int8_t>(vector[i]);
    const int counted = i < 6 ? element & ~1 : element;
    numbers.push_back(code == 63 ? kNan : std::ldexp(static_cast<float>(counted), code - 40));
  }
  return numbers;
}

// Vectors of head_dim numbers as a page of `format` holds them, one after the other; and back.
inline std::vector<std::byte> StoredTokens(std::span<const float> vectors,
                                           const VectorFormat& format, uint32_t head_dim) {
  if (format != kEightBitTokens) return ToBytes(vectors, format.element);
  std::vector<std::byte> bytes;
  for (size_t at = 0; at < vectors.size(); at += head_dim) {
    const auto stored = EightBitVector(vectors.subspan(at, head_dim));
    bytes.insert(bytes.end(), stored.begin(), stored.end());
  }
  return bytes;
}
inline std::vector<float> TokenNumbers(std::span<const std::byte> bytes, const VectorFormat& format,
                                       uint32_t head_dim) {
  if (format != kEightBitTokens) return FromBytes(bytes, format.element);
  std::vector<float> numbers;
  for (size_t at = 0; at < bytes.size(); at += head_dim) {
    const auto vector = EightBitNumbers(bytes.subspan(at, head_dim));
    numbers.insert(numbers.end(), vector.begin(), vector.end());
  }
  return numbers;
}

// What vectors become when they are stored.
inline std::vector<float> RoundedTokens(std::span<const float> vectors, const VectorFormat& format,
                                        uint32_t head_dim) {
  return TokenNumbers(StoredTokens(vectors, format, head_dim), format, head_dim);
}

// Vectors that rounding to eight bits may stumble over, with their code in front: zeros, ties,
// steps between codes, the least and the largest, and what is no number.
struct HardVector {
  int code;
  std::vector<float> numbers;
};
inline std::vector<HardVector> HardVectors(size_t head_dim) {
  std::vector<HardVector> hard;
  const auto add = [&](int code, float largest) -> std::vector<float>& {
    std::vector<float> numbers(head_dim);
    for (size_t i = 0; i < head_dim; ++i) {  // in steps of half an element
      numbers[i] = largest * (static_cast<float>(i * 37 % 254) / 254 - 0.5f);
    }
    numbers[head_dim - 1] = -largest;
    hard.push_back({code, std::move(numbers)});
    return hard.back().numbers;
  };
  add(0, 0.0f);
  add(40, 127.0f);
  add(41, std::nextafter(127.0f, 128.0f));
  add(39, 63.5f);
  add(40, std::nextafter(63.5f, 64.0f));
  add(0, std::ldexp(127.0f, -40));
  add(1, std::ldexp(127.5f, -40));
  add(0, std::ldexp(1.0f, -140));
  add(62, std::ldexp(127.0f, 22));
  add(63, std::ldexp(127.5f, 22));
  add(63, 3e38f);
  add(40, 100.0f)[0] = 127.0f;  // the even numbers end at 126
  add(40, 100.0f)[3] = -127.0f;
  add(40, 100.0f)[5] = 63.5f;
  add(63, 1.0f)[7] = INFINITY;
  add(63, 1.0f)[head_dim - 2] = kNan;
  return hard;
}

}  // namespace retroinfer::test_support
