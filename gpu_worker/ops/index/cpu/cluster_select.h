// The CPU backend's selection of clusters (contract in gpu_worker/ops/index/cluster_select.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/index/cluster_select.h"

namespace retroinfer::cpu {

absl::Status ClusterSelect(CpuStream& stream, const ClusterSelectArgs& args);

}  // namespace retroinfer::cpu
