// The CUDA backend's products with the matrices of experts (contract in
// gpu_worker/ops/model/grouped_linear.h), for weights in every form that linear has.
//
// Few rows take two launches, whose weights are read once (grouped_few.cu); many take three, with
// tiles of an expert's rows (grouped_many.cu). Activations stay bf16, with kFp8Products, too.
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/model/grouped_linear.h"

namespace retroinfer::cuda {

// REQUIRES: args.linear comes from PrepareLinear.
// Returns:  INVALID_ARGUMENT, too, if rows are not aligned to 16 bytes.
absl::Status GroupedGatedLinear(CudaStream& stream, const GroupedGatedLinearArgs& args);
absl::Status GroupedLinear(CudaStream& stream, const GroupedLinearArgs& args);

}  // namespace retroinfer::cuda
