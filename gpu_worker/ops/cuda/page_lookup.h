// The CUDA backend's look-up of pages (contract in gpu_worker/ops/page_lookup.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/page_lookup.h"

namespace retroinfer::cuda {

absl::Status PageLookup(CudaStream& stream, const PageLookupArgs& args);

}  // namespace retroinfer::cuda
