// The gated activation of Llama's feed-forward network: out = silu(gate) * up (SwiGLU).
#pragma once

#include "gpu_worker/ops/matrix.h"

namespace retroinfer {

struct SiluMulArgs {
  MatrixView gate;  // [n, f], activation dtype
  MatrixView up;    // [n, f], activation dtype
  MatrixView out;   // [n, f], activation dtype; may be `gate`
};

}  // namespace retroinfer
