// The CUDA backend's writing of a segment (contract in gpu_worker/ops/index/write_segment.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/index/write_segment.h"

namespace retroinfer::cuda {

absl::Status WriteSegment(CudaStream& stream, const WriteSegmentArgs& args);

}  // namespace retroinfer::cuda
