// Weights for a model without a checkpoint: for measuring speed, which does not depend on them.
#pragma once

#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/model/model_config.h"
#include "gpu_worker/model/model_weights.h"
#include "gpu_worker/ops/collective/tensor_parallel.h"
#include "gpu_worker/ops/model/model_ops.h"

namespace retroinfer {

// Makes bf16 weights: norms of one, everything else normal with deviation 0.02, the same in every
// run. A few million numbers are drawn and repeated, each matrix beginning elsewhere in them. With
// kFp8 and kFp8Products, or for a model whose checkpoint is quantized, matrices of layers are
// rounded to 8 bits. A rank of several gets its part of the numbers that one would have; `config`
// is the whole model's.
//
// Returns: as ShardConfig; RESOURCE_EXHAUSTED if the device has too little memory. Beside the
//          weights it takes room for the largest matrix, until it returns.
absl::StatusOr<ModelWeights> RandomModelWeights(Device& device, ModelOps& ops,
                                                const ModelConfig& config,
                                                KeptWeights keep = KeptWeights::kAsStored,
                                                const TensorParallel& parallel = {});

}  // namespace retroinfer
