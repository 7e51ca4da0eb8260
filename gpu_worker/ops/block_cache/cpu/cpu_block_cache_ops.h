// The operations on the block cache of the CPU backend: a thin dispatch to one function each.
#pragma once

#include "gpu_worker/ops/block_cache/block_cache_ops.h"

namespace retroinfer {

class CpuBlockCacheOps final : public BlockCacheOps {
 public:
  bool uses_transient_slots() const override { return true; }
  absl::Status PageLookup(Stream& stream, const PageLookupArgs& args) override;
  absl::Status AdmitPages(Stream& stream, const AdmitPagesArgs& args) override;
  absl::Status ApplyEvictions(Stream& stream, const ApplyEvictionsArgs& args) override;
  absl::Status ReleasePages(Stream& stream, const ReleasePagesArgs& args) override;
  absl::Status TakeSlots(Stream& stream, const TakeSlotsArgs& args) override;
  absl::Status AdmitSlots(Stream& stream, const AdmitSlotsArgs& args) override;
  absl::Status LogSnapshot(Stream& stream, const LogSnapshotArgs& args) override;
};

}  // namespace retroinfer
