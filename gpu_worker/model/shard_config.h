// The part of a model that a rank has, as a model of its own: whoever loads, sizes or runs it asks
// the rank's configuration, and finds fewer heads, features and outputs there.
//
// * Query heads are split evenly; their KV heads go with them. With more ranks than KV heads each
//   is held by as many ranks as share its query heads.
// * Columns of feed-forward networks, and of each expert, so that all ranks choose the same
//   experts, are split in units (FeatureUnit), as evenly as these allow.
// * Tokens of the output projection are split in units of ModelShard::output_unit. The embedding is
//   whole on each rank.
#pragma once

#include "absl/status/statusor.h"
#include "gpu_worker/model/model_config.h"
#include "gpu_worker/model/model_table.h"
#include "gpu_worker/ops/collective/tensor_parallel.h"

namespace retroinfer {

// The configuration of a rank; `whole` itself where there is one.
//
// REQUIRES: !whole.shard.
// Returns: INVALID_ARGUMENT, with the numbers and what would do, if heads, features or outputs do
//          not go into so many ranks.
absl::StatusOr<ModelConfig> ShardConfig(const ModelConfig& whole, const TensorParallel& parallel);

// Features of a feed-forward network that stay together: those that share a scale of quantized
// weights, and what operations take at a time.
int64_t FeatureUnit(const ModelConfig& config);

// What a rank has of a tensor of the whole model.
struct TensorShare {
  Share rows;
  Share cols;             // {0, 1} of a vector
  bool is_zeros = false;  // another rank has the numbers
};
TensorShare ShareOf(const TensorSpec& tensor, const ModelShard& shard, uint32_t head_dim);

}  // namespace retroinfer
