#include "gpu_worker/ops/cpu/token_vectors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "gpu_worker/ops/eight_bit_vector.h"
#include "tests/support/stored_tokens.h"

namespace retroinfer {
namespace {

using namespace test_support;
using testing::Each;
using testing::ElementsAreArray;

std::vector<std::byte> Stored(const std::vector<float>& numbers) {
  std::vector<std::byte> stored(numbers.size(), std::byte{0xee});
  cpu::StoreToken(numbers.data(), kEightBitTokens, static_cast<uint32_t>(numbers.size()),
                  stored.data());
  return stored;
}

std::vector<float> Row(const std::vector<std::byte>& stored) {
  std::vector<std::byte> row(2 * stored.size());
  cpu::UnpackToken(stored.data(), kEightBitTokens, static_cast<uint32_t>(stored.size()),
                   row.data());
  return FromBytes(row, DType::kBf16);
}

// What was stored is what plain arithmetic gives; it is exact in bf16, and stored again the same.
void ExpectStoredAsDescribed(const std::vector<float>& numbers) {
  const auto stored = Stored(numbers);
  ASSERT_THAT(stored, ElementsAreArray(EightBitVector(numbers)));
  const auto row = Row(stored), want = EightBitNumbers(stored);
  if (std::isnan(want[0])) {
    for (const float number : row) ASSERT_TRUE(std::isnan(number));
  } else {
    ASSERT_EQ(row, want);
  }
  std::vector<std::byte> again(stored.size());
  cpu::PackToken(ToBytes(row, DType::kBf16).data(), kEightBitTokens,
                 static_cast<uint32_t>(stored.size()), again.data());
  ASSERT_EQ(again, stored);
}

TEST(TokenVectorsTest, RandomVectorsOfAllSizes) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    const size_t head_dim = i % 2 == 0 ? 64 : 128;
    const auto size = std::ldexp(1.0f, static_cast<int>(random() % 90) - 60);
    ASSERT_NO_FATAL_FAILURE(ExpectStoredAsDescribed(RandomNormal(head_dim, random(), size))) << i;
  }
}

TEST(TokenVectorsTest, HardVectors) {
  for (const size_t head_dim : {64u, 128u, 256u}) {
    for (const auto& [code, numbers] : HardVectors(head_dim)) {
      SCOPED_TRACE(testing::Message() << "code " << code << ", largest " << numbers.back());
      uint64_t first = 0;
      std::memcpy(&first, Stored(numbers).data(), sizeof(first));
      EXPECT_EQ(CodeOf(first), code);
      ASSERT_NO_FATAL_FAILURE(ExpectStoredAsDescribed(numbers));
    }
  }
}

TEST(TokenVectorsTest, AnElementIsOffByHalfAStepAndTheFirstByOne) {
  const auto numbers = RandomNormal(128, 3);
  const auto stored = Stored(numbers);
  uint64_t first = 0;
  std::memcpy(&first, stored.data(), sizeof(first));
  const float step = ScaleOfCode(CodeOf(first));
  const auto row = Row(stored);
  for (size_t i = 0; i < row.size(); ++i) {
    EXPECT_LE(std::abs(row[i] - numbers[i]), (i < 6 ? 1.0f : 0.5f) * step) << i;
  }
}

TEST(TokenVectorsTest, ZerosAreZeroBytes) {
  EXPECT_THAT(Stored(std::vector<float>(128)), Each(std::byte{0}));
  EXPECT_THAT(Row(std::vector<std::byte>(128)), Each(0.0f));
}

TEST(TokenVectorsTest, PlainFormatsAreCopiedAsTheyAre) {
  const auto numbers = RandomNormal(64, 5);
  for (const DType type : {DType::kF32, DType::kBf16, DType::kF16}) {
    const VectorFormat format{.element = type};
    const auto want = ToBytes(numbers, type);
    std::vector<std::byte> stored(want.size()), row(want.size()), packed(want.size());
    cpu::StoreToken(numbers.data(), format, 64, stored.data());
    EXPECT_EQ(stored, want);
    cpu::UnpackToken(stored.data(), format, 64, row.data());
    EXPECT_EQ(row, want);
    cpu::PackToken(row.data(), format, 64, packed.data());
    EXPECT_EQ(packed, want);
  }
}

}  // namespace
}  // namespace retroinfer
