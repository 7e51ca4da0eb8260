#include "gpu_worker/model/turned_bias.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace retroinfer {
namespace {

// By the sum over all positions.
struct Summed {
  double mean[2] = {};
  double rest_square = 0;
  double largest_rest = 0;
};

Summed Sum(float low, float high, float frequency, double factor, int64_t num_positions) {
  const auto turned = [&](int64_t position, int half) {
    const double angle = double{frequency} * static_cast<double>(position);
    return factor * (half == 0 ? low * std::cos(angle) - high * std::sin(angle)
                               : high * std::cos(angle) + low * std::sin(angle));
  };
  Summed sum;
  for (int64_t p = 0; p < num_positions; ++p) {
    for (int half = 0; half < 2; ++half) {
      sum.mean[half] += turned(p, half) / static_cast<double>(num_positions);
    }
  }
  for (int64_t p = 0; p < num_positions; ++p) {
    const double square =
        std::pow(turned(p, 0) - sum.mean[0], 2) + std::pow(turned(p, 1) - sum.mean[1], 2);
    sum.rest_square += square / static_cast<double>(num_positions);
    sum.largest_rest = std::max(sum.largest_rest, std::sqrt(square));
  }
  return sum;
}

TEST(TurnedBiasTest, MeansAndRestsAreThoseOfAllPositions) {
  constexpr uint32_t kHeadDim = 16;
  constexpr int64_t kPositions = 20000;
  RopeConfig rope;
  rope.theta = 1e6;
  rope.attention_factor = 1.25;
  const std::vector<float> frequencies = rope.InverseFrequencies(kHeadDim);
  std::vector<float> bias(2 * kHeadDim);
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i % 7) * 40 - 100;
  const TurnedBias turned = TurnBias(rope, kHeadDim, kPositions, bias);
  ASSERT_EQ(turned.means.size(), bias.size());
  for (size_t head = 0; head < bias.size(); head += kHeadDim) {
    for (size_t i = 0; i < frequencies.size(); ++i) {
      const size_t low = head + i, high = low + kHeadDim / 2;
      const Summed want = Sum(bias[low], bias[high], frequencies[i], 1.25, kPositions);
      const double length = 1.25 * std::hypot(bias[low], bias[high]);
      // Sums and integrals differ by half a step at either end.
      const double near = length * std::max(2e-4, double{frequencies[i]} / kPositions * 4);
      EXPECT_NEAR(turned.means[low], want.mean[0], near) << head << ", " << i;
      EXPECT_NEAR(turned.means[high], want.mean[1], near) << head << ", " << i;
      EXPECT_NEAR(turned.rest_squares[low], want.rest_square, length * near) << head << ", " << i;
      EXPECT_EQ(turned.rest_squares[high], 0);
      // A pair that turns fast does not come by each angle of its circle, but nearly.
      EXPECT_NEAR(turned.largest_rests[low], want.largest_rest, 0.01 * length);
      EXPECT_EQ(turned.largest_rests[high], turned.largest_rests[low]);
    }
  }
}

TEST(TurnedBiasTest, OfTheSlowestPairNearlyNothingIsLeft) {
  RopeConfig rope;
  rope.theta = 1e6;
  std::vector<float> bias(64);
  bias[31] = 240;  // turns by 0.05 over 32,768 tokens
  const TurnedBias turned = TurnBias(rope, 64, 32768, bias);
  EXPECT_NEAR(turned.means[31], 240, 1);
  EXPECT_LT(turned.largest_rests[31], 8);
  EXPECT_LT(turned.rest_squares[31], 4 * 4);
  bias[31] = 0;
  bias[0] = 240;  // turns by 1 each token
  const TurnedBias fast = TurnBias(rope, 64, 32768, bias);
  EXPECT_NEAR(fast.means[0], 0, 0.1);
  EXPECT_NEAR(fast.rest_squares[0], 240 * 240, 60);
  EXPECT_NEAR(fast.largest_rests[0], 240, 0.1);
}

}  // namespace
}  // namespace retroinfer
