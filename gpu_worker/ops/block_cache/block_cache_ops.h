// The block cache: look-ups and admissions of a step, and what is done to it between two steps.
//
// All calls as ops.h says.
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/ops/block_cache/apply_evictions.h"
#include "gpu_worker/ops/block_cache/log_snapshot.h"
#include "gpu_worker/ops/block_cache/page_lookup.h"
#include "gpu_worker/ops/block_cache/release_pages.h"
#include "gpu_worker/ops/block_cache/slot_fill.h"

namespace retroinfer {

class BlockCacheOps {
 public:
  virtual ~BlockCacheOps() = default;

  // Whether PageLookup copies pages that it does not admit into transient slots.
  virtual bool uses_transient_slots() const = 0;
  virtual absl::Status PageLookup(Stream& stream, const PageLookupArgs& args) = 0;
  virtual absl::Status AdmitPages(Stream& stream, const AdmitPagesArgs& args) = 0;
  virtual absl::Status ApplyEvictions(Stream& stream, const ApplyEvictionsArgs& args) = 0;
  virtual absl::Status ReleasePages(Stream& stream, const ReleasePagesArgs& args) = 0;
  virtual absl::Status TakeSlots(Stream& stream, const TakeSlotsArgs& args) = 0;
  virtual absl::Status AdmitSlots(Stream& stream, const AdmitSlotsArgs& args) = 0;
  virtual absl::Status LogSnapshot(Stream& stream, const LogSnapshotArgs& args) = 0;
};

}  // namespace retroinfer
