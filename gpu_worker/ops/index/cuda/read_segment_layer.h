// The CUDA backend's reading of a segment (contract in gpu_worker/ops/index/read_segment_layer.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/index/read_segment_layer.h"

namespace retroinfer::cuda {

absl::Status ReadSegmentLayer(CudaStream& stream, const ReadSegmentLayerArgs& args);

}  // namespace retroinfer::cuda
