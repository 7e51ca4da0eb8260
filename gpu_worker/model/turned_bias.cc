#include "gpu_worker/model/turned_bias.h"

#include <cmath>
#include <numbers>

namespace retroinfer {

TurnedBias TurnBias(const RopeConfig& rope, uint32_t head_dim, int64_t num_positions,
                    std::span<const float> bias) {
  const std::vector<float> frequencies = rope.InverseFrequencies(head_dim);
  const size_t half = frequencies.size();
  TurnedBias turned;
  turned.means.resize(bias.size());
  turned.rest_squares.resize(bias.size());
  turned.largest_rests.resize(bias.size());
  for (size_t head = 0; head < bias.size(); head += 2 * half) {
    for (size_t i = 0; i < half; ++i) {
      // A pair runs along an arc of 2 `angle`; its mean lies in the middle, `share` of its length
      // away from the centre.
      const double angle = double{frequencies[i]} * static_cast<double>(num_positions) / 2;
      const double share = angle == 0 ? 1 : std::sin(angle) / angle;
      const double low = double{bias[head + i]} * rope.attention_factor;
      const double high = double{bias[head + half + i]} * rope.attention_factor;
      const double cos = share * std::cos(angle), sin = share * std::sin(angle);
      turned.means[head + i] = static_cast<float>(low * cos - high * sin);
      turned.means[head + half + i] = static_cast<float>(high * cos + low * sin);
      const double length = std::hypot(low, high);
      turned.rest_squares[head + i] = length * length * (1 - share * share);
      const double farthest = angle >= std::numbers::pi
                                  ? 1 + std::abs(share)
                                  : std::sqrt(1 + share * share - 2 * share * std::cos(angle));
      turned.largest_rests[head + i] = turned.largest_rests[head + half + i] = length * farthest;
    }
  }
  return turned;
}

}  // namespace retroinfer
