// Heads of sizes that no operation has code for (80, 96, ...) as the next larger one that all have:
// zeros behind the numbers of each query, key and value head, and as many columns of zeros of the
// output projection. That changes no result: scores get products of zeros, and outputs zeros times
// zeros; what scores are multiplied by, and how many numbers RoPE turns, stays that of the
// checkpoint. Keys and values take the memory of the larger heads.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/model_config.h"

namespace retroinfer {

// The size of kHeadDims that heads of `head_dim` numbers are served with; 0: of none.
uint32_t ServedHeadDim(int64_t head_dim);

// Gives the tensors of `checkpoint` the shapes that the table of the model has; the files stay as
// they are, zeros come in while tensors are read. Does nothing to heads of one of kHeadDims.
//
// Returns: INVALID_ARGUMENT, naming the tensor, if one is missing or has another shape than the
//          checkpoint's own heads would give; `checkpoint` is unchanged then.
absl::Status PadHeads(const ModelConfig& config, Checkpoint& checkpoint);

}  // namespace retroinfer
