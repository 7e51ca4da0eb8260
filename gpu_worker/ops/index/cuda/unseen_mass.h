// The CUDA backend's unseen mass (contract in gpu_worker/ops/index/unseen_mass.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/index/unseen_mass.h"

namespace retroinfer::cuda {

absl::Status UnseenMass(CudaStream& stream, const UnseenMassArgs& args);

}  // namespace retroinfer::cuda
