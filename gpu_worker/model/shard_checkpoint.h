// A rank's part of a checkpoint: tensors of the names that the model's have, each the rows or
// columns that the rank has, in whatever form they are stored.
#pragma once

#include "absl/status/statusor.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/model_config.h"

namespace retroinfer {

// `config`: of the rank, from ShardConfig(whole, ...). `checkpoint` must outlive the result.
//
// REQUIRES: CheckTensors(whole, checkpoint) has passed.
// Returns: UNIMPLEMENTED, with the tensor, where what shares a scale, a word of codes or a place in
//          an order of input features would have to be split.
absl::StatusOr<Checkpoint> ShardCheckpoint(const ModelConfig& whole, const ModelConfig& config,
                                           const Checkpoint& checkpoint);

}  // namespace retroinfer
