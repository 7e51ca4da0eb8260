#include "gpu_worker/ops/cpu/token_codes.h"

#include <gtest/gtest.h>

#include "tests/support/token_code_reference.h"

namespace retroinfer::cpu {
namespace {

using namespace test_support;

std::vector<double> Doubles(std::span<const float> numbers) {
  return {numbers.begin(), numbers.end()};
}

TEST(TokenCodesTest, TurningIsAHadamardTransformThatKeepsLengths) {
  for (const size_t d : {64u, 128u, 256u}) {
    auto vector = RandomNormal(d, 3);
    const auto want = TurnedVector(Doubles(vector));
    TurnVector(vector);
    double squares = 0, want_squares = 0;
    for (size_t i = 0; i < d; ++i) {
      EXPECT_NEAR(vector[i], want[i], 1e-5);
      squares += double{vector[i]} * vector[i];
      want_squares += want[i] * want[i];
    }
    EXPECT_NEAR(squares, want_squares, 1e-4 * want_squares);
  }
}

TEST(TokenCodesTest, ACodeIsWhatItsDefinitionSays) {
  for (const size_t d : {64u, 128u, 256u}) {
    for (const float size : {1e-6f, 0.01f, 1.0f, 300.0f, 1e8f}) {
      SCOPED_TRACE(testing::Message() << d << ", " << size);
      const auto residual = RandomNormal(d, static_cast<uint64_t>(d), size);
      std::vector<uint8_t> code(d / 4, 0xff);
      TokenCodeFactors factors{1, 1};
      CodeResidual(residual, code.data(), factors);
      ExpectCodeOf(Doubles(residual), code.data(), factors);
    }
  }
}

TEST(TokenCodesTest, WhatHasNoDirectionHasNoScale) {
  for (const float number : {0.0f, INFINITY, kNan}) {
    std::vector<float> residual(64);
    residual[7] = number;
    uint8_t code[16];
    TokenCodeFactors factors{1, 1};
    CodeResidual(residual, code, factors);
    EXPECT_EQ(factors.scale, 0);
    EXPECT_EQ(factors.error, 0);
  }
}

// Two bits leave an error of about a third of the residual; on average the product is right.
TEST(TokenCodesTest, ProductsAreRightOnAverageAndAsFarOffAsTheErrorSays) {
  constexpr size_t kDim = 128, kTrials = 400;
  double bias = 0, off = 0, told = 0;
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    const auto residual = RandomNormal(kDim, 2 * trial + 1);
    auto query = RandomNormal(kDim, 2 * trial + 2);
    double exact = 0, squares = 0;
    for (size_t i = 0; i < kDim; ++i) {
      exact += double{query[i]} * residual[i];
      squares += double{query[i]} * query[i];
    }
    uint8_t code[kDim / 4];
    TokenCodeFactors factors;
    CodeResidual(residual, code, factors);
    TurnVector(query);
    double estimate = 0;
    for (size_t i = 0; i < kDim; ++i) estimate += double{query[i]} * LevelOf(code, i);
    estimate *= FromF16(factors.scale);
    bias += estimate - exact;
    off += std::pow(estimate - exact, 2);
    told += squares * std::pow(FromF16(factors.error), 2) / kDim;
  }
  EXPECT_LT(std::abs(bias / kTrials), 3 * std::sqrt(off) / kTrials);
  EXPECT_NEAR(off / told, 1, 0.25);
  EXPECT_LT(std::sqrt(off / kTrials), 0.5 * std::sqrt(double{kDim}));
}

}  // namespace
}  // namespace retroinfer::cpu
