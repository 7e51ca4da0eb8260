// The CUDA backend's attention over the estimation zone (contract in gpu_worker/ops/estimate.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/index/estimate.h"

namespace retroinfer::cuda {

size_t EstimateScratchBytes(int32_t max_batch, int32_t num_query_heads, int32_t head_dim,
                            int64_t max_estimated);

absl::Status Estimate(CudaStream& stream, const EstimateArgs& args);

}  // namespace retroinfer::cuda
