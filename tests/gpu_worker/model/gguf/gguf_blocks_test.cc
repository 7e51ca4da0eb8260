// Numbers are compared bit by bit with those that the package gguf decodes
// (tests/golden/gguf/blocks.gguf): all arithmetic is in f32 in one order.
#include "gpu_worker/model/gguf/gguf_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "gpu_worker/model/gguf/gguf_file.h"
#include "gpu_worker/model/small_floats.h"
#include "tests/gpu_worker/model/gguf/golden_gguf.h"

namespace retroinfer {
namespace {

using ::testing::HasSubstr;

TEST(GgufBlocksTest, NumbersAreThoseOfTheFormatsOwnPackage) {
  const auto file = GgufFile::Open(test_support::GoldenGgufPath("blocks.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string suffix = ".expected";
  size_t num_types = 0;
  for (const auto& [name, expected] : file->tensors()) {
    if (!name.ends_with(suffix)) continue;
    ++num_types;
    const std::string type = name.substr(0, name.size() - suffix.size());
    SCOPED_TRACE(type);
    const GgufTensor& tensor = file->tensors().at(type);
    const GgufBlocks& blocks = *tensor.blocks;
    EXPECT_EQ(blocks.name, type);
    std::vector<float> numbers(static_cast<size_t>(tensor.rows() * tensor.cols()));
    ASSERT_EQ(numbers.size() * sizeof(float), expected.bytes.size());
    for (size_t i = 0; i < numbers.size() / blocks.elements; ++i) {
      blocks.decode(tensor.bytes.data() + i * blocks.bytes, numbers.data() + i * blocks.elements);
    }
    EXPECT_EQ(std::memcmp(numbers.data(), expected.bytes.data(), expected.bytes.size()), 0);
    // Not all alike: a decoder that reads one code for all would pass on zeros.
    EXPECT_GT(std::set<float>(numbers.begin(), numbers.end()).size(), 50u);
  }
  EXPECT_EQ(num_types, 13u);
}

TEST(GgufBlocksTest, OtherTypesAreRefusedByName) {
  const auto refused = GgufBlocksOf(23);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("IQ4_XS, which is not supported; F32, F16, BF16, Q4_0"));
  EXPECT_EQ(GgufBlocksOf(12345).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SmallFloatsTest, RoundsToTheNearestEvenBf16) {
  EXPECT_EQ(ToBf16(1.0f), 0x3f80);
  EXPECT_EQ(ToBf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // a tie, to even
  EXPECT_EQ(ToBf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(ToBf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(ToBf16(std::numeric_limits<float>::max()), 0x7f80);  // infinity is nearer
  EXPECT_TRUE(std::isnan(FromBf16(ToBf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(SmallFloatsTest, F16HasSubnormalNumbersAndInfinities) {
  EXPECT_EQ(FromF16(0x3c00), 1.0f);
  EXPECT_EQ(FromF16(0x8001), -std::ldexp(1.0f, -24));
  EXPECT_EQ(FromF16(0x03ff), std::ldexp(1023.0f, -24));
  EXPECT_EQ(FromF16(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(FromF16(0x7e00)));
}

}  // namespace
}  // namespace retroinfer
