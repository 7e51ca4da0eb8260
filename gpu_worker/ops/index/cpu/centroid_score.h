// The CPU backend's scoring of clusters (contract in gpu_worker/ops/index/centroid_score.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/index/centroid_score.h"

namespace retroinfer::cpu {

absl::Status CentroidScore(CpuStream& stream, const CentroidScoreArgs& args);

}  // namespace retroinfer::cpu
