#include "gpu_worker/ops/model/e4m3.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace retroinfer {
namespace {

TEST(E4m3Test, CodesAreWhatTheFormatSays) {
  for (int code = 0; code < 256; ++code) {
    if (IsE4m3Nan(static_cast<uint8_t>(code))) continue;
    const int exponent = code >> 3 & 15;
    const double size =
        exponent == 0 ? std::ldexp(code & 7, -9) : std::ldexp(1 + (code & 7) / 8.0, exponent - 7);
    const double want = code < 128 ? size : -size;
    EXPECT_EQ(FromE4m3(static_cast<uint8_t>(code)), want) << code;
    EXPECT_EQ(ToE4m3(static_cast<float>(want)), code);
  }
  EXPECT_EQ(FromE4m3(0x7e), kE4m3Max);
}

TEST(E4m3Test, BetweenTwoCodesTheNearerIsTakenAndOfEquallyNearTheEvenOne) {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = FromE4m3(static_cast<uint8_t>(code));
    const float high = FromE4m3(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(ToE4m3(middle), code % 2 == 0 ? code : code + 1) << code;
    EXPECT_EQ(ToE4m3(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(ToE4m3(std::nextafter(middle, 1000.0f)), code + 1);
    EXPECT_EQ(ToE4m3(-std::nextafter(middle, 1000.0f)), code + 1 + 128);
  }
}

TEST(E4m3Test, TheLargestStandsForWhatIsBeyondIt) {
  for (const float value :
       {448.0f, 464.0f, 465.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(ToE4m3(value), 0x7e);
    EXPECT_EQ(ToE4m3(-value), 0xfe);
  }
}

TEST(E4m3Test, AScaleBringsTheLargestNumberToTheLargestCode) {
  for (const float largest : {1e-30f, 0.02f, 448.0f, 3e38f}) {
    const float scale = QuantizationScale(largest);
    EXPECT_EQ(ToE4m3(largest / scale), 0x7e) << largest;
  }
  EXPECT_EQ(QuantizationScale(0), 1.0f);
  EXPECT_GT(QuantizationScale(std::numeric_limits<float>::denorm_min()), 0.0f);
}

}  // namespace
}  // namespace retroinfer
