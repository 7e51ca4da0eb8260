// The CUDA backend's loading of a segment's index (contract in
// gpu_worker/ops/index/load_segment_index.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/index/load_segment_index.h"

namespace retroinfer::cuda {

absl::Status LoadSegmentIndex(CudaStream& stream, const LoadSegmentIndexArgs& args);

}  // namespace retroinfer::cuda
