// The CUDA backend's selection of clusters (contract in gpu_worker/ops/index/cluster_select.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/index/cluster_select.h"

namespace retroinfer::cuda {

absl::Status ClusterSelect(CudaStream& stream, const ClusterSelectArgs& args);

}  // namespace retroinfer::cuda
