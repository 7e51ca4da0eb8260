#include "gpu_worker/model/host_numbers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "common/log/check.h"
#include "gpu_worker/model/small_floats.h"

namespace retroinfer {
namespace {

template <typename T>
T Read(const std::byte* bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
  return value;
}

void ScaleRun(WeightType type, std::byte* bytes, size_t count, int exponent) {
  const float factor = std::ldexp(1.0f, exponent);
  for (size_t i = 0; i < count; ++i) {
    if (type == WeightType::kF32) {
      const float value = Read<float>(bytes, i) * factor;
      std::memcpy(bytes + i * sizeof(value), &value, sizeof(value));
    } else {
      const uint32_t bits = std::bit_cast<uint32_t>(FromBf16(Read<uint16_t>(bytes, i)) * factor);
      const auto half = static_cast<uint16_t>(bits >> 16);
      std::memcpy(bytes + i * sizeof(half), &half, sizeof(half));
    }
  }
}

}  // namespace

std::vector<float> NumbersOf(WeightType type, std::span<const std::byte> bytes) {
  RI_CHECK(!HasScales(type));
  std::vector<float> numbers(bytes.size() / WeightTypeBytes(type));
  for (size_t i = 0; i < numbers.size(); ++i) {
    switch (type) {
      case WeightType::kF32:
        numbers[i] = Read<float>(bytes.data(), i);
        break;
      case WeightType::kBf16:
        numbers[i] = FromBf16(Read<uint16_t>(bytes.data(), i));
        break;
      default:
        numbers[i] = FromF16(Read<uint16_t>(bytes.data(), i));
    }
  }
  return numbers;
}

void ScaleRows(WeightType type, std::span<std::byte> bytes, size_t begin, size_t cols,
               std::span<const int8_t> exponents) {
  RI_CHECK(type == WeightType::kF32 || type == WeightType::kBf16);
  const size_t element = WeightTypeBytes(type);
  RI_CHECK(bytes.size() % element == 0);
  const size_t end = begin + bytes.size() / element;
  for (size_t at = begin; at < end;) {
    const size_t row = at / cols;
    const size_t count = std::min(end, (row + 1) * cols) - at;
    if (exponents[row] != 0) {
      ScaleRun(type, bytes.data() + (at - begin) * element, count, exponents[row]);
    }
    at += count;
  }
}

}  // namespace retroinfer
