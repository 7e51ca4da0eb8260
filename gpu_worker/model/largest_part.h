// The part of a model that no rank's is larger than: what all ranks plan their memory for.
#pragma once

#include "absl/status/statusor.h"
#include "common/kv/kv_head_range.h"
#include "gpu_worker/model/model_config.h"
#include "gpu_worker/ops/collective/tensor_parallel.h"

namespace retroinfer {

// The part of `parallel.rank` as a model of its own, with as many features as any rank has: some
// have a few more than others. `heads` gets which KV heads of all the rank has; with one rank it
// stays as it is, and the model is whole.
//
// Returns: as ShardConfig().
absl::StatusOr<ModelConfig> LargestPart(const ModelConfig& whole, const TensorParallel& parallel,
                                        KvHeadRange* heads);

}  // namespace retroinfer
