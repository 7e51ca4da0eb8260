#include "gpu_worker/ops/cpu/store_vectors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/stored_vectors.h"

namespace retroinfer::cpu {
namespace {

using namespace test_support;

std::vector<std::byte> Stored(const std::vector<float>& vectors, const VectorFormat& format,
                              uint32_t head_dim) {
  const size_t count = vectors.size() / head_dim;
  std::vector<std::byte> bytes(format.ArrayBytes(count, head_dim), std::byte{0xee});
  StoreVectors(vectors.data(), format, count, head_dim, bytes.data());
  return bytes;
}

TEST(StoreVectorsTest, WithoutScalesItConverts) {
  const auto vectors = RandomNormal(8 * 64, 1);
  EXPECT_EQ(Stored(vectors, {.element = DType::kBf16}, 64), ToBytes(vectors, DType::kBf16));
  EXPECT_EQ(Stored(vectors, {.element = DType::kF32}, 64), ToBytes(vectors, DType::kF32));
}

// Of every size from the least to the largest float: as the plain arithmetic, and never further
// from the number than half a step.
TEST(StoreVectorsTest, Int8IsWithinHalfAStepOfEveryNumber) {
  for (const uint32_t head_dim : kHeadDims) {
    for (int exponent = -60; exponent < 24; ++exponent) {
      auto vectors = RandomNormal(64 * head_dim, static_cast<uint64_t>(exponent + 100));
      for (float& number : vectors) number = std::ldexp(number, exponent);
      const auto bytes = Stored(vectors, kInt8Vectors, head_dim);
      ASSERT_EQ(bytes, StoredVectors(vectors, kInt8Vectors, head_dim)) << exponent;
      for (size_t i = 0; i < vectors.size(); ++i) {
        const float scale =
            FromF16(Int8ScaleOf(std::span(vectors).subspan(i / head_dim * head_dim, head_dim)));
        if (scale == 65504) continue;  // saturates
        const float number = StoredNumber(bytes.data(), kInt8Vectors, head_dim, i);
        ASSERT_LE(std::abs(number - vectors[i]), scale * 0.500001f) << exponent;
      }
    }
  }
}

TEST(StoreVectorsTest, TheScaleIsTheLeastThatDoesNotSaturate) {
  std::vector<float> vectors(64 * 64);
  for (size_t i = 0; i < 64; ++i) vectors[i * 64 + i] = 127 * (1 + static_cast<float>(i) / 5000);
  const auto bytes = Stored(vectors, kInt8Vectors, 64);
  const auto scales = FromBytes(std::span(bytes).subspan(64 * 64), DType::kF16);
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_GE(scales[i] * 127, vectors[i * 64 + i]);
    EXPECT_LT((scales[i] - 0x1p-10f) * 127, vectors[i * 64 + i]) << "a smaller one would do";
  }
}

TEST(StoreVectorsTest, VectorsOfZerosAndOnesThatAreNotFinite) {
  std::vector<float> vectors(8 * 64, 1.0f);
  std::fill_n(vectors.begin(), 64, 0.0f);
  vectors[64 + 5] = kNan;
  vectors[2 * 64] = -INFINITY;
  vectors[3 * 64 + 1] = -0.0f;
  vectors[4 * 64 + 1] = 3e38f;
  const auto bytes = Stored(vectors, kInt8Vectors, 64);
  const auto scales = FromBytes(std::span(bytes).subspan(8 * 64), DType::kF16);
  EXPECT_EQ(scales[0], 0.0f);
  EXPECT_TRUE(std::isnan(scales[1]));
  EXPECT_TRUE(std::isnan(scales[2]));
  for (size_t i = 0; i < 3 * 64; ++i) EXPECT_EQ(bytes[i], std::byte{0}) << i;
  EXPECT_EQ(bytes[3 * 64], std::byte{127});
  EXPECT_EQ(bytes[3 * 64 + 1], std::byte{0});
  EXPECT_EQ(scales[4], 65504.0f) << "the largest that there is";
  EXPECT_EQ(bytes[4 * 64 + 1], std::byte{127});
}

}  // namespace
}  // namespace retroinfer::cpu
