#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/model/route_experts.h"

namespace retroinfer::cpu {

// Leaves the tiles of the plan alone.
absl::Status RouteExperts(CpuStream& stream, const RouteExpertsArgs& args);

}  // namespace retroinfer::cpu
