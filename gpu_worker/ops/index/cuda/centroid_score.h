// The CUDA backend's scoring of clusters (contract in gpu_worker/ops/index/centroid_score.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/index/centroid_score.h"

namespace retroinfer::cuda {

absl::Status CentroidScore(CudaStream& stream, const CentroidScoreArgs& args);

}  // namespace retroinfer::cuda
