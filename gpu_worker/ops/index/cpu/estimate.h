// The CPU backend's attention over the estimation zone (contract in
// gpu_worker/ops/index/estimate.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/index/estimate.h"

namespace retroinfer::cpu {

absl::Status Estimate(CpuStream& stream, const EstimateArgs& args);

}  // namespace retroinfer::cpu
