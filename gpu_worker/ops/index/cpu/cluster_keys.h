// The CPU backend's clustering of a segment (contract in gpu_worker/ops/index/cluster_keys.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/index/cluster_keys.h"
#include "gpu_worker/ops/index/cpu/cluster_keys_scratch.h"

namespace retroinfer::cpu {

absl::Status ClusterKeys(CpuStream& stream, const ClusterKeysArgs& args);

}  // namespace retroinfer::cpu
