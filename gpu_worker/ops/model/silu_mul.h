// The gated activation of a feed-forward network: out = f(gate) * up, with f silu as in Llama
// (SwiGLU), or GELU as Gemma approximates it by tanh (GeGLU; Shazeer 2020, Hendrycks and Gimpel
// 2016).
#pragma once

#include <cstdint>

#include "gpu_worker/ops/matrix.h"

namespace retroinfer {

enum class GatedActivation : uint8_t { kSilu, kGeluTanh, kClampedSwiglu };

// x * (1 + tanh(a (x + b x^3))) / 2 = x / (1 + exp(-2 a (x + b x^3))), a = sqrt(2 / pi).
inline constexpr float kGeluTanhSlope = 0.7978845608028654f;
inline constexpr float kGeluTanhCubic = 0.044715f;

// gpt-oss: min(gate, limit) * sigmoid(slope * min(gate, limit)) * (clamp(up, -limit, limit) + 1).
inline constexpr float kClampedSwigluSlope = 1.702f;
inline constexpr float kClampedSwigluLimit = 7.0f;

struct SiluMulArgs {
  MatrixView gate;  // [n, f], activation dtype
  MatrixView up;    // [n, f], activation dtype
  MatrixView out;   // [n, f], activation dtype; may be `gate`
  GatedActivation activation = GatedActivation::kSilu;
};

}  // namespace retroinfer
