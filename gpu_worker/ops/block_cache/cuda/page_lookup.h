// The CUDA backend's look-up of pages (contract in gpu_worker/ops/block_cache/page_lookup.h).
// Missing pages are attended in the arena; transient slots are not used.
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/block_cache/page_lookup.h"

namespace retroinfer::cuda {

absl::Status PageLookup(CudaStream& stream, const PageLookupArgs& args);
absl::Status AdmitPages(CudaStream& stream, const AdmitPagesArgs& args);

}  // namespace retroinfer::cuda
