#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/model/sampling.h"

namespace retroinfer::cuda {

absl::Status Sampling(CudaStream& stream, const SamplingArgs& args);

}  // namespace retroinfer::cuda
