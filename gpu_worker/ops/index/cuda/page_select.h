// The CUDA backend's selection of pages (contract in gpu_worker/ops/index/page_select.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/index/page_select.h"

namespace retroinfer::cuda {

absl::Status PageSelect(CudaStream& stream, const PageSelectArgs& args);
absl::Status CandidateRest(CudaStream& stream, const PageSelectArgs& args);

}  // namespace retroinfer::cuda
