#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/model/arrange_codes.h"

namespace retroinfer::cuda {

absl::Status ArrangeCodes(CudaStream& stream, const ArrangeCodesArgs& args);

}  // namespace retroinfer::cuda
