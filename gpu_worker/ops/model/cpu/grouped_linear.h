#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/model/grouped_linear.h"

namespace retroinfer::cpu {

// REQUIRES: args.linear comes from PrepareLinear.
absl::Status GroupedGatedLinear(CpuStream& stream, const GroupedGatedLinearArgs& args);
absl::Status GroupedLinear(CpuStream& stream, const GroupedLinearArgs& args);

}  // namespace retroinfer::cpu
