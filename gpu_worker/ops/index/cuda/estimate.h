// The CUDA backend's attention over the estimation zone (contract in
// gpu_worker/ops/index/estimate.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/index/cuda/estimate_scratch.h"
#include "gpu_worker/ops/index/estimate.h"

namespace retroinfer::cuda {

absl::Status Estimate(CudaStream& stream, const EstimateArgs& args);

}  // namespace retroinfer::cuda
