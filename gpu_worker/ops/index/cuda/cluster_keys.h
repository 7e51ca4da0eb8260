// The CUDA backend's clustering of a segment (contract in gpu_worker/ops/index/cluster_keys.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/index/cluster_keys.h"
#include "gpu_worker/ops/index/cuda/cluster_keys_scratch.h"

namespace retroinfer::cuda {

absl::Status ClusterKeys(CudaStream& stream, const ClusterKeysArgs& args);

}  // namespace retroinfer::cuda
