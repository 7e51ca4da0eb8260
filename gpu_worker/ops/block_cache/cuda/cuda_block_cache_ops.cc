#include "gpu_worker/ops/block_cache/cuda/cuda_block_cache_ops.h"

#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/block_cache/cuda/apply_evictions.h"
#include "gpu_worker/ops/block_cache/cuda/log_snapshot.h"
#include "gpu_worker/ops/block_cache/cuda/page_lookup.h"
#include "gpu_worker/ops/block_cache/cuda/release_pages.h"
#include "gpu_worker/ops/block_cache/cuda/slot_fill.h"

namespace retroinfer {

absl::Status CudaBlockCacheOps::PageLookup(Stream& stream, const PageLookupArgs& args) {
  return cuda::PageLookup(CudaStream::Of(stream), args);
}

absl::Status CudaBlockCacheOps::AdmitPages(Stream& stream, const AdmitPagesArgs& args) {
  return cuda::AdmitPages(CudaStream::Of(stream), args);
}

absl::Status CudaBlockCacheOps::ApplyEvictions(Stream& stream, const ApplyEvictionsArgs& args) {
  return cuda::ApplyEvictions(CudaStream::Of(stream), args);
}

absl::Status CudaBlockCacheOps::ReleasePages(Stream& stream, const ReleasePagesArgs& args) {
  return cuda::ReleasePages(CudaStream::Of(stream), args);
}

absl::Status CudaBlockCacheOps::TakeSlots(Stream& stream, const TakeSlotsArgs& args) {
  return cuda::TakeSlots(CudaStream::Of(stream), args);
}

absl::Status CudaBlockCacheOps::AdmitSlots(Stream& stream, const AdmitSlotsArgs& args) {
  return cuda::AdmitSlots(CudaStream::Of(stream), args);
}

absl::Status CudaBlockCacheOps::LogSnapshot(Stream& stream, const LogSnapshotArgs& args) {
  return cuda::LogSnapshot(CudaStream::Of(stream), args);
}

}  // namespace retroinfer
