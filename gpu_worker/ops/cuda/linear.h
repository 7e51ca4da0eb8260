// The CUDA backend's matrix products (contract in gpu_worker/ops/linear.h): cuBLASLt.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/linear.h"

namespace retroinfer::cuda {

// Handle, workspace and chosen algorithms.
class LinearContext {
 public:
  static absl::StatusOr<std::unique_ptr<LinearContext>> Create(CudaDevice& device);
};

// Takes the memory of the weights from the context's device.
absl::StatusOr<std::unique_ptr<PreparedLinear>> PrepareLinear(LinearContext& context,
                                                              const LinearWeights& weights);
// REQUIRES: args.linear comes from PrepareLinear with the same context.
absl::Status Linear(LinearContext& context, CudaStream& stream, const LinearArgs& args);

}  // namespace retroinfer::cuda
