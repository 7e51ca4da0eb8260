// Codes of tokens by plain arithmetic (common/kv/token_code.h).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "common/kv/token_code.h"
#include "tests/support/device_data.h"

namespace retroinfer::test_support {

// H S v / sqrt(d), number by number.
inline std::vector<double> TurnedVector(std::span<const double> vector) {
  const size_t d = vector.size();
  std::vector<double> turned(d);
  for (size_t i = 0; i < d; ++i) {
    for (size_t j = 0; j < d; ++j) {
      const bool is_negative =
          (std::popcount(i & j) % 2 != 0) != TurnsSign(static_cast<uint32_t>(j));
      turned[i] += is_negative ? -vector[j] : vector[j];
    }
    turned[i] /= std::sqrt(static_cast<double>(d));
  }
  return turned;
}

// Level of channel `channel` of a code.
inline int LevelOf(const uint8_t* code, size_t channel) {
  return CodeLevel(code[channel / 4] >> (2 * (channel % 4)) & 3);
}

// Checks a code and its factors against the residual that they stand for.
inline void ExpectCodeOf(std::span<const double> residual, const uint8_t* code,
                         const TokenCodeFactors& factors) {
  const double scale = FromF16(factors.scale), error = FromF16(factors.error);
  double squares = 0;
  for (const double number : residual) squares += number * number;
  if (!(squares > 0) || !std::isfinite(squares)) {
    EXPECT_EQ(scale, 0);
    EXPECT_EQ(error, 0);
    return;
  }
  const std::vector<double> turned = TurnedVector(residual);
  const double unit = std::sqrt(squares / static_cast<double>(residual.size()));
  double inner = 0, difference = 0;
  for (size_t i = 0; i < turned.size(); ++i) {
    const int level = LevelOf(code, i);
    inner += level * turned[i];
    difference += std::pow(turned[i] - scale * level, 2);
    // Sums in f32 may put what is next to an edge on its other side.
    if (std::abs(turned[i]) > 1e-4 * unit) {
      EXPECT_EQ(level < 0, turned[i] < 0) << i;
    }
    if (std::abs(std::abs(turned[i]) / unit - kLevelEdge) > 1e-4) {
      EXPECT_EQ(std::abs(level) == kLargeLevel, std::abs(turned[i]) / unit > kLevelEdge) << i;
    }
  }
  // f16 has 11 bits, and below 2^-14 steps of 2^-24.
  const double want_scale = std::min(squares / inner, 65504.0);
  EXPECT_NEAR(scale, want_scale, want_scale / 1024 + 0x1p-24);
  const double want_error = std::min(std::sqrt(difference), 65504.0);
  EXPECT_NEAR(error, want_error, want_error / 512 + 0x1p-24);
}

}  // namespace retroinfer::test_support
