#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/cpu/compute_precision.h"
#include "gpu_worker/ops/linear.h"

namespace retroinfer::cpu {

absl::StatusOr<std::unique_ptr<PreparedLinear>> PrepareLinear(ComputePrecision precision,
                                                              const LinearWeights& weights);
// REQUIRES: args.linear comes from PrepareLinear.
absl::Status Linear(CpuStream& stream, const LinearArgs& args);

}  // namespace retroinfer::cpu
