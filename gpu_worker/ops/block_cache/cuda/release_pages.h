// The CUDA backend's release of a segment's pages (contract in
// gpu_worker/ops/block_cache/release_pages.h).
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/block_cache/release_pages.h"

namespace retroinfer::cuda {

absl::Status ReleasePages(CudaStream& stream, const ReleasePagesArgs& args);

}  // namespace retroinfer::cuda
