// What RoPE makes of the bias of keys (Qwen2), and how much of it is the same for all positions.
//
// Biases of several hundred are seen, in the pairs of channels that RoPE turns slowest: over all
// positions that a model is made for they hardly move. What all keys of a head have in common adds
// the same number to all scores of a query, so the weights of attention do not change when it is
// taken away; what is left is small enough for eight bits, and for clusters to see the rest of a
// key (docs/decisions/0093-the-mean-of-turned-biases.md).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu_worker/model/rope_config.h"

namespace retroinfer {

// All of one layer: [kv_heads * head_dim], or as said.
struct TurnedBias {
  std::vector<float> means;          // over positions 0 to the last
  std::vector<double> rest_squares;  // of a pair of channels, at the first of both: the mean square
                                     // of what varies around the mean; at the second 0
  std::vector<double> largest_rests;  // of a pair, at both: the largest distance to the mean
};

// `bias`: [kv_heads * head_dim], behind whatever scales its rows. `num_positions`: tokens that the
// model is made for.
//
// REQUIRES: num_positions > 0.
TurnedBias TurnBias(const RopeConfig& rope, uint32_t head_dim, int64_t num_positions,
                    std::span<const float> bias);

}  // namespace retroinfer
