#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/model/route_experts.h"

namespace retroinfer::cuda {

// One launch for few rows, two for many.
absl::Status RouteExperts(CudaStream& stream, const RouteExpertsArgs& args);

}  // namespace retroinfer::cuda
