// What a rank of tensor parallelism has of a model.
#pragma once

#include <cstdint>

#include "common/kv/kv_head_range.h"
#include "gpu_worker/ops/collective/tensor_parallel.h"

namespace retroinfer {

struct ModelShard {
  // Columns of logits that ranks have in common multiples: their rows in memory begin at cache
  // lines.
  static constexpr int64_t kOutputUnit = 16;

  TensorParallel parallel;
  Share query_heads;
  KvHeadRange kv_heads;  // several ranks have the same one where there are fewer than ranks
  Share features;        // of the feed-forward network, or of each expert
  Share outputs;         // tokens whose logits it computes
  int64_t output_unit = kOutputUnit;
};

}  // namespace retroinfer
