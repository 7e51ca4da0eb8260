// The gated activation (silu_mul.h) of one element.
#pragma once

#include "gpu_worker/ops/model/silu_mul.h"

namespace retroinfer::cuda {

// exp may be infinite: the quotient is then zero with the right sign.
__device__ inline float GateTimes(GatedActivation activation, float gate, float up) {
  float exponent = -gate;
  if (activation == GatedActivation::kGeluTanh) {
    exponent = -2 * kGeluTanhSlope * (gate + kGeluTanhCubic * gate * gate * gate);
  } else if (activation == GatedActivation::kClampedSwiglu) {
    gate = fminf(gate, kClampedSwigluLimit);
    up = fminf(fmaxf(up, -kClampedSwigluLimit), kClampedSwigluLimit) + 1;
    exponent = -kClampedSwigluSlope * gate;
  }
  return gate / (1.0f + expf(exponent)) * up;
}

}  // namespace retroinfer::cuda
