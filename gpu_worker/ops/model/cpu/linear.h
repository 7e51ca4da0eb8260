#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/cpu/compute_precision.h"
#include "gpu_worker/ops/model/linear.h"

namespace retroinfer::cpu {

// Takes the memory of the packed weights from `device`. Products are in bf16 if `precision` is
// kBf16, the processor has them, and the weights are not f32 that are kept as they are stored; else
// in f32. Weights of 8 and 4 bits become the numbers of the products, rounded: converting them for
// each product would take longer than reading 16 bits does.
absl::StatusOr<std::unique_ptr<PreparedLinear>> PrepareLinear(Device& device,
                                                              ComputePrecision precision,
                                                              const LinearWeights& weights);
// REQUIRES: args.linear comes from PrepareLinear.
absl::Status Linear(CpuStream& stream, const LinearArgs& args);

}  // namespace retroinfer::cpu
