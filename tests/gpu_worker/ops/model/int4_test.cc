#include "gpu_worker/ops/model/int4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using test_support::RandomNormal;

Int4Group GroupOf(const std::vector<float>& values) {
  return Int4Group::Of(std::ssize(values),
                       [&values](int64_t i) { return values[static_cast<size_t>(i)]; });
}

double SquaredError(const Int4Group& group, const std::vector<float>& values) {
  double error = 0;
  for (const float value : values) {
    error += std::pow(double{group.NumberOf(group.CodeOf(value))} - value, 2);
  }
  return error;
}

TEST(Int4Test, FormsDecodeTheLowHalfFirst) {
  const std::byte row[] = {std::byte{0x80}, std::byte{0xf7}};
  float numbers[4];
  Int4Weights(32, true).decode(row, 4, numbers);
  EXPECT_EQ(std::vector<float>(numbers, numbers + 4), (std::vector<float>{0, 8, 7, 15}));
  Int4Weights(32, false).decode(row, 3, numbers);
  EXPECT_EQ(std::vector<float>(numbers, numbers + 3), (std::vector<float>{-8, 0, -1}));
  EXPECT_EQ(Int4Weights(32, true).RowBytes(9), 8u);
  EXPECT_EQ(Int4Weights(32, true).ScaleBytes(3, 65), 3u * 3 * 4);
  EXPECT_EQ(Int4Weights(0, false).ScaleBytes(3, 65), 3u * 4);
}

TEST(Int4Test, AGroupThatFitsTheCodesLosesNothing) {
  std::vector<float> values;
  for (int code = 0; code < 16; ++code) values.push_back(0.25f * static_cast<float>(code - 3));
  const Int4Group group = GroupOf(values);
  EXPECT_EQ(group.scale, 0.25f);
  EXPECT_EQ(group.zero, 3);
  for (int code = 0; code < 16; ++code)
    EXPECT_EQ(group.CodeOf(values[static_cast<size_t>(code)]), code);
  const std::vector<float> symmetric = {-7, 7, 3, 0, 1};
  EXPECT_EQ(SquaredError(GroupOf(symmetric), symmetric), 0);
  const std::vector<float> zeros(128);
  EXPECT_EQ(SquaredError(GroupOf(zeros), zeros), 0);
}

// No plain way to round has a smaller error: the ends of the group, or its largest size.
TEST(Int4Test, TheErrorIsTheLeastOfTheChoices) {
  for (const float mean : {0.0f, 0.5f, -2.0f}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      std::vector<float> values = RandomNormal(128, seed, 0.02f);
      for (float& value : values) value += mean * 0.02f;
      const auto [low, high] = std::minmax_element(values.begin(), values.end());
      const float ends = std::max(*high, 0.0f) - std::min(*low, 0.0f);
      const Int4Group by_ends = {
          .scale = ends / 15, .zero = static_cast<int>(-std::min(*low, 0.0f) / ends * 15 + 0.5f)};
      const Int4Group by_size = {.scale = std::max(*high, -*low) / 7};
      const double error = SquaredError(GroupOf(values), values);
      EXPECT_LE(error, 1.0001 * SquaredError(by_ends, values)) << mean << " " << seed;
      EXPECT_LE(error, 1.0001 * SquaredError(by_size, values)) << mean << " " << seed;
      EXPECT_GT(error, 0);
    }
  }
}

TEST(Int4Test, NumbersOfAnySizeHaveAScale) {
  for (const float size : {1e-42f, 1e-30f, 1.0f, 3e38f}) {
    const Int4Group group = GroupOf({size, -size / 3, size / 2});
    EXPECT_TRUE(std::isfinite(group.scale) && group.scale > 0) << size;
    EXPECT_EQ(Int4GroupWord(group.scale, group.zero) & 0x1f, static_cast<uint32_t>(group.zero));
    EXPECT_EQ(Int4GroupWord(group.scale, 0), std::bit_cast<uint32_t>(group.scale));
    EXPECT_TRUE(std::isfinite(group.NumberOf(group.CodeOf(size)))) << size;
  }
}

TEST(Int4Test, EveryOrderHasAPlaceForEachCode) {
  constexpr int64_t kRows = 19, kCols = 21;
  for (const CodeOrder& order : {kCodesInRows, kAwqCodes, kGptqCodes, kGptqZeros, kCodesDown}) {
    std::set<std::pair<int64_t, int>> seen;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t col = 0; col < kCols; ++col) {
        const CodeOrder::Place place = order.PlaceOf(row, col, kRows, kCols);
        EXPECT_LT(static_cast<size_t>(place.word) * 4, order.Bytes(kRows, kCols));
        EXPECT_TRUE(place.shift % 4 == 0 && place.shift < 32);
        EXPECT_TRUE(seen.insert({place.word, place.shift}).second);
      }
    }
  }
  // As those who write them say: a word of AWQ has output features 0, 2, 4, 6, 1, 3, 5, 7.
  EXPECT_EQ(kAwqCodes.PlaceOf(9, 5, 16, 32).word, 5 * 2 + 1);
  EXPECT_EQ(kAwqCodes.PlaceOf(9, 5, 16, 32).shift, 16);
  EXPECT_EQ(kAwqCodes.PlaceOf(10, 5, 16, 32).shift, 4);
  EXPECT_EQ(kGptqCodes.PlaceOf(9, 13, 16, 32).word, 1 * 16 + 9);
  EXPECT_EQ(kGptqCodes.PlaceOf(9, 13, 16, 32).shift, 20);
  EXPECT_EQ(kGptqZeros.PlaceOf(9, 3, 16, 4).word, 3 * 2 + 1);
  EXPECT_EQ(kCodesInRows.PlaceOf(9, 13, 16, 32).word, 9 * 4 + 1);
  EXPECT_EQ(kCodesDown.PlaceOf(9, 3, 16, 4).word, 1 * 4 + 3);
}

}  // namespace
}  // namespace retroinfer
