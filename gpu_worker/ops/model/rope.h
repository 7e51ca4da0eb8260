// Rotary position embedding (Su et al. 2021) in the half-split form of Llama and Qwen checkpoints:
// (x[i], x[i + r/2]) is rotated by position * inv_freq[i], for the first r numbers of a head; r is
// d in most models.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/matrix.h"

namespace retroinfer {

// Fills cos and sin for the given positions, once a step for all layers.
struct RopeTableArgs {
  DeviceSpan<const int32_t> positions;  // [n], >= 0
  DeviceSpan<const float> inv_freq;     // [r / 2]
  float attention_factor = 1.0f;        // scales both (YaRN); 1 otherwise
  // Both are scaled by 1 + growth * log(1 + floor(position / growth_positions)), too: the table is
  // then of queries that grow with their positions (Llama 4, Ministral 3).
  float growth = 0;
  int32_t growth_positions = 1;  // > 0
  DeviceSpan<float> cos;         // [n, r / 2]
  DeviceSpan<float> sin;         // [n, r / 2]
};

// Rotates every head of every row in place; what is behind the first `rotated_dims` of a head
// stays.
struct RopeArgs {
  MatrixView x;  // [n, heads * head_dim], activation dtype
  uint32_t head_dim = 0;
  uint32_t rotated_dims = 0;    // even; 0: head_dim
  DeviceSpan<const float> cos;  // [n, rotated_dims / 2]
  DeviceSpan<const float> sin;  // [n, rotated_dims / 2]
  // Taken from the last columns of x behind the rotation: whole heads, all of whose dimensions are
  // rotated; may be empty.
  DeviceSpan<const float> offsets = {};

  int64_t half() const { return (rotated_dims == 0 ? head_dim : rotated_dims) / 2; }
};

}  // namespace retroinfer
