// The CUDA backend's clustering of a segment (contract in gpu_worker/ops/cluster_keys.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/index/cluster_keys.h"

namespace retroinfer::cuda {

size_t ClusterKeysScratchBytes(uint32_t num_kv_heads, uint32_t head_dim, int32_t num_tokens,
                               int32_t num_clusters);
absl::Status ClusterKeys(CudaStream& stream, const ClusterKeysArgs& args);

}  // namespace retroinfer::cuda
