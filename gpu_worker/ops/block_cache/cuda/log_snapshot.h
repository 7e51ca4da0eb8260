// The CUDA backend's snapshot of the block cache (contract in
// gpu_worker/ops/block_cache/log_snapshot.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/block_cache/log_snapshot.h"

namespace retroinfer::cuda {

absl::Status LogSnapshot(CudaStream& stream, const LogSnapshotArgs& args);

}  // namespace retroinfer::cuda
