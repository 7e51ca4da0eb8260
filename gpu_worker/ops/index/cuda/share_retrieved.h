// The CUDA backend's shared retrieval (contract in gpu_worker/ops/index/share_retrieved.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/index/share_retrieved.h"

namespace retroinfer::cuda {

absl::Status ShareRetrieved(CudaStream& stream, const ShareRetrievedArgs& args);

}  // namespace retroinfer::cuda
