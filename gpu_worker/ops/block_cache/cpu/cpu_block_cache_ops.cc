#include "gpu_worker/ops/block_cache/cpu/cpu_block_cache_ops.h"

#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/block_cache/block_cache_check.h"
#include "gpu_worker/ops/block_cache/cpu/apply_evictions.h"
#include "gpu_worker/ops/block_cache/cpu/log_snapshot.h"
#include "gpu_worker/ops/block_cache/cpu/page_lookup.h"
#include "gpu_worker/ops/block_cache/cpu/release_pages.h"
#include "gpu_worker/ops/block_cache/cpu/slot_fill.h"

namespace retroinfer {

absl::Status CpuBlockCacheOps::PageLookup(Stream& stream, const PageLookupArgs& args) {
  return cpu::PageLookup(CpuStream::Of(stream), args);
}

absl::Status CpuBlockCacheOps::AdmitPages(Stream& /*stream*/, const AdmitPagesArgs& args) {
  return CheckAdmitPages(args);  // PageLookup has done it.
}

absl::Status CpuBlockCacheOps::ApplyEvictions(Stream& stream, const ApplyEvictionsArgs& args) {
  return cpu::ApplyEvictions(CpuStream::Of(stream), args);
}

absl::Status CpuBlockCacheOps::ReleasePages(Stream& stream, const ReleasePagesArgs& args) {
  return cpu::ReleasePages(CpuStream::Of(stream), args);
}

absl::Status CpuBlockCacheOps::TakeSlots(Stream& stream, const TakeSlotsArgs& args) {
  return cpu::TakeSlots(CpuStream::Of(stream), args);
}

absl::Status CpuBlockCacheOps::AdmitSlots(Stream& stream, const AdmitSlotsArgs& args) {
  return cpu::AdmitSlots(CpuStream::Of(stream), args);
}

absl::Status CpuBlockCacheOps::LogSnapshot(Stream& stream, const LogSnapshotArgs& args) {
  return cpu::LogSnapshot(CpuStream::Of(stream), args);
}

}  // namespace retroinfer
