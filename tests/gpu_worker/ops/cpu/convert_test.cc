#include "gpu_worker/ops/cpu/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/support/device_data.h"

namespace retroinfer::cpu {
namespace {

using namespace test_support;

TEST(ConvertTest, RoundsToBf16AsTheReferenceDoes) {
  for (const size_t size : {0, 1, 31, 32, 33, 1000}) {
    auto values = RandomNormal(size, 1, 100.0f);
    if (size > 30) {
      values[3] = INFINITY;
      values[4] = std::bit_cast<float>(0x3f808000u);  // tie, to even: down
      values[5] = std::bit_cast<float>(0x3f818000u);  // tie, to even: up
      values[6] = 1e-40f;
      values[7] = -0.0f;
      values[8] = 3.4e38f;  // rounds to infinity
    }
    std::vector<std::byte> out(2 * size);
    ConvertFromF32(values.data(), DType::kBf16, out.data(), static_cast<int64_t>(size));
    EXPECT_EQ(out, ToBytes(values, DType::kBf16));
    std::vector<float> back(size);
    ConvertToF32(DType::kBf16, out.data(), back.data(), static_cast<int64_t>(size));
    EXPECT_EQ(back, FromBytes(out, DType::kBf16));
  }
}

TEST(ConvertTest, NanStaysNan) {
  const float nan = std::bit_cast<float>(0x7f800001u);  // would round to infinity
  uint16_t bits = 0;
  ConvertFromF32(&nan, DType::kBf16, reinterpret_cast<std::byte*>(&bits), 1);
  EXPECT_TRUE(std::isnan(FromBf16(bits)));
}

TEST(ConvertTest, ReadsEveryF16) {
  std::vector<uint16_t> halves;
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    halves.push_back(static_cast<uint16_t>(bits));
    halves.push_back(static_cast<uint16_t>(bits | 0x8000));
  }
  std::vector<float> values(halves.size());
  ConvertToF32(DType::kF16, reinterpret_cast<const std::byte*>(halves.data()), values.data(),
               static_cast<int64_t>(halves.size()));
  for (size_t i = 0; i < halves.size(); ++i) {
    const int exponent = (halves[i] >> 10) & 31, mantissa = halves[i] & 1023;
    const float size = exponent == 0
                           ? std::ldexp(static_cast<float>(mantissa), -24)
                           : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
    ASSERT_EQ(values[i], halves[i] & 0x8000 ? -size : size);
  }
}

TEST(ConvertTest, RoundsToTheNearestF16) {
  std::vector<float> values = {0.0f,       -0.0f,
                               1.0f,       65504.0f,
                               65519.9f,   65520.0f,
                               1e30f,      0x1p-14f,
                               0x1p-24f,   0x1p-25f,
                               0x1.8p-24f, 0x1.8p-25f,
                               1e-30f,     std::numeric_limits<float>::infinity()};
  // Every f16, the values half-way to the next, and what lies beside those.
  for (uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = test_support::FromF16(bits);
    const float high = test_support::FromF16(static_cast<uint16_t>(bits + 1));
    const float half = (low + high) / 2;
    values.insert(values.end(), {low, half, std::nextafter(half, low), std::nextafter(half, high)});
  }
  for (size_t i = values.size(); i-- > 0;) values.push_back(-values[i]);
  std::vector<std::byte> out(2 * values.size());
  ConvertFromF32(values.data(), DType::kF16, out.data(), static_cast<int64_t>(values.size()));
  EXPECT_EQ(out, ToBytes(values, DType::kF16));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  uint16_t bits = 0;
  ConvertFromF32(&nan, DType::kF16, reinterpret_cast<std::byte*>(&bits), 1);
  EXPECT_TRUE(std::isnan(test_support::FromF16(bits)));
}

TEST(ConvertTest, CopiesF32) {
  const auto values = RandomNormal(40, 3);
  std::vector<float> out(40), back(40);
  ConvertFromF32(values.data(), DType::kF32, reinterpret_cast<std::byte*>(out.data()), 40);
  ConvertToF32(DType::kF32, reinterpret_cast<const std::byte*>(out.data()), back.data(), 40);
  EXPECT_EQ(back, values);
}

}  // namespace
}  // namespace retroinfer::cpu
