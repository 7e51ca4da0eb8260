// out[i] = table[token_ids[i]] * scale.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/matrix.h"

namespace retroinfer {

struct EmbeddingArgs {
  DeviceSpan<const int32_t> token_ids;  // [n], each in [0, table.rows); the engine has checked that
  MatrixView table;                     // [vocab, hidden], f32, bf16 or f16
  float scale = 1;
  MatrixView out;  // [n, hidden], activation dtype
};

}  // namespace retroinfer
