// Rotary position embedding (Su et al. 2021) in the half-split form of Llama and Qwen checkpoints:
// (x[i], x[i + d/2]) is rotated by position * inv_freq[i].
#pragma once

#include <cstdint>

#include "gpu_worker/ops/matrix.h"

namespace retroinfer {

// Fills cos and sin for the given positions, once a step for all layers.
struct RopeTableArgs {
  DeviceSpan<const int32_t> positions;  // [n], >= 0
  DeviceSpan<const float> inv_freq;     // [d / 2]
  float attention_factor = 1.0f;        // scales both (YaRN); 1 otherwise
  DeviceSpan<float> cos;                // [n, d / 2]
  DeviceSpan<float> sin;                // [n, d / 2]
};

// Rotates every head of every row in place.
struct RopeArgs {
  MatrixView x;  // [n, heads * head_dim], activation dtype
  uint32_t head_dim = 0;
  DeviceSpan<const float> cos;  // [n, head_dim / 2]
  DeviceSpan<const float> sin;  // [n, head_dim / 2]
  // Taken from the last columns of x behind the rotation: whole heads; may be empty.
  DeviceSpan<const float> offsets = {};
};

}  // namespace retroinfer
