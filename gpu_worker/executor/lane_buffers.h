// How large the buffers of a prefill lane are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kv/kv_geometry.h"
#include "gpu_worker/model/model_config.h"

namespace retroinfer {

// Bytes of a lane's buffers.
struct LaneBufferSizes {
  size_t last_hidden;
  size_t hidden;
  size_t kv;  // of each of the two

  LaneBufferSizes(const ModelConfig& model, DType activation_dtype, const KvGeometry& geometry,
                  int64_t max_tokens, int32_t max_members) {
    const auto tokens = static_cast<size_t>(max_tokens);
    const auto members = static_cast<size_t>(max_members);
    const size_t row = static_cast<size_t>(model.hidden_size) * DTypeBytes(activation_dtype);
    last_hidden = members * row;
    hidden = tokens * row;
    kv = 2 * size_t{geometry.num_kv_heads} * tokens * geometry.prompt_vector_bytes();
  }
  size_t total() const { return last_hidden + hidden + 2 * kv; }
};

}  // namespace retroinfer
