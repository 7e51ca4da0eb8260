#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/model/rms_norm.h"

namespace retroinfer::cuda {

absl::Status RmsNorm(CudaStream& stream, const RmsNormArgs& args);

}  // namespace retroinfer::cuda
