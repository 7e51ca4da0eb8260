// The CUDA backend's eviction of pages (contract in gpu_worker/ops/block_cache/apply_evictions.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/block_cache/apply_evictions.h"

namespace retroinfer::cuda {

absl::Status ApplyEvictions(CudaStream& stream, const ApplyEvictionsArgs& args);

}  // namespace retroinfer::cuda
