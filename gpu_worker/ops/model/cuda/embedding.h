#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/model/embedding.h"

namespace retroinfer::cuda {

absl::Status Embedding(CudaStream& stream, const EmbeddingArgs& args);

}  // namespace retroinfer::cuda
