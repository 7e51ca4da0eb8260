// Checks of the arguments of load_segment_index, shared by the backends.
#pragma once

#include "absl/status/status.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/index/load_segment_index.h"
#include "gpu_worker/ops/index/places_check.h"

namespace retroinfer {

inline absl::Status CheckLoadSegmentIndex(const LoadSegmentIndexArgs& args) {
  constexpr char kOp[] = "load_segment_index";
  const KvGeometry& geometry = args.pool.geometry;
  RETURN_IF_ERROR(geometry.Validate());
  RETURN_IF_ERROR(
      CheckPlaces(uint64_t{args.extent_first_page} + args.extent.size() / geometry.page_bytes(),
                  geometry, kOp));
  RETURN_IF_ERROR(
      CheckArg(args.layer < geometry.num_layers, kOp, "layer is outside of the pool's geometry"));
  RETURN_IF_ERROR(CheckArg(args.num_tokens > 0 && args.num_tokens % kDecodeSegmentTokens == 0 &&
                               args.num_tokens <= kPrefillSegmentTokens,
                           kOp, "needs a whole segment"));
  RETURN_IF_ERROR(
      CheckArg(args.heads.Fits(geometry), kOp, "needs heads of the arena for those of the pool"));
  const SegmentLayout layout(args.heads.ArenaOf(geometry), args.num_tokens);
  RETURN_IF_ERROR(CheckArg(args.extent.size() >= layout.first_kv_page * layout.page_bytes, kOp,
                           "needs an extent that holds the segment's index"));
  return CheckArg(args.meta_blocks.size() == layout.num_clusters / kClustersPerMetaBlock, kOp,
                  "needs a meta block for each 64 clusters");
}

}  // namespace retroinfer
