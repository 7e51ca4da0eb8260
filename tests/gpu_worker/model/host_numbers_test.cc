#include "gpu_worker/model/host_numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

namespace retroinfer {
namespace {

std::vector<std::byte> Bytes(const std::string& text) {
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

TEST(HostNumbers, ReadsEveryTypeOfNumbers) {
  const std::vector<float> expected = {1.0f, -2.5f, 0.0f};
  EXPECT_EQ(NumbersOf(WeightType::kBf16, Bytes(std::string("\x80\x3f\x20\xc0\0\0", 6))), expected);
  EXPECT_EQ(NumbersOf(WeightType::kF16, Bytes(std::string("\x00\x3c\x00\xc1\0\0", 6))), expected);
  std::vector<std::byte> floats(12);
  std::memcpy(floats.data(), expected.data(), 12);
  EXPECT_EQ(NumbersOf(WeightType::kF32, floats), expected);
  // The smallest of f16, infinity and what is no number.
  const auto odd = NumbersOf(WeightType::kF16, Bytes(std::string("\x01\x80\x00\x7c\x01\x7c", 6)));
  EXPECT_EQ(odd[0], -std::ldexp(1.0f, -24));
  EXPECT_EQ(odd[1], INFINITY);
  EXPECT_TRUE(std::isnan(odd[2]));
}

// A piece of a tensor of rows of 3: the end of row 1, row 2, the beginning of row 3.
TEST(HostNumbers, ScalesThePiecesOfRowsThatAreThere) {
  const std::vector<int8_t> exponents = {100, 2, 0, -1};
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16}) {
    std::vector<std::byte> bytes;
    const size_t element = WeightTypeBytes(type);
    for (int i = 0; i < 6; ++i) {
      const float value = 1.5f;
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      if (type == WeightType::kBf16) bits >>= 16;
      bytes.resize(bytes.size() + element);
      std::memcpy(bytes.data() + bytes.size() - element, &bits, element);
    }
    ScaleRows(type, bytes, 4, 3, exponents);
    EXPECT_EQ(NumbersOf(type, bytes), (std::vector<float>{6, 6, 1.5, 1.5, 1.5, 0.75}));
  }
}

}  // namespace
}  // namespace retroinfer
