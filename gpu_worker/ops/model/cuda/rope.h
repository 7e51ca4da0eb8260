#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/model/rope.h"

namespace retroinfer::cuda {

absl::Status RopeTable(CudaStream& stream, const RopeTableArgs& args);
absl::Status Rope(CudaStream& stream, const RopeArgs& args);

}  // namespace retroinfer::cuda
