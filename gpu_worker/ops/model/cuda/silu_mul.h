#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/model/silu_mul.h"

namespace retroinfer::cuda {

absl::Status SiluMul(CudaStream& stream, const SiluMulArgs& args);

}  // namespace retroinfer::cuda
