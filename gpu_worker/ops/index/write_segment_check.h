// Checks of the arguments of write_segment, shared by the backends.
#pragma once

#include "absl/status/status.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/index/places_check.h"
#include "gpu_worker/ops/index/write_segment.h"

namespace retroinfer {

inline absl::Status CheckWriteSegment(const WriteSegmentArgs& args) {
  constexpr char kOp[] = "write_segment";
  const KvGeometry& geometry = args.geometry;
  RETURN_IF_ERROR(geometry.Validate());
  RETURN_IF_ERROR(
      CheckPlaces(uint64_t{args.extent_first_page} + args.extent.size() / geometry.page_bytes(),
                  geometry, kOp));
  RETURN_IF_ERROR(CheckArg(args.pool.geometry == geometry && args.layer < geometry.num_layers &&
                               args.kv.num_kv_heads == geometry.num_kv_heads &&
                               args.kv.head_dim == geometry.head_dim &&
                               args.kv.dtype == geometry.format.prompt,
                           kOp, "needs KV, pool and layer of one geometry"));
  RETURN_IF_ERROR(
      CheckArg(args.heads.Fits(geometry), kOp, "needs heads of the arena for those of the KV"));
  RETURN_IF_ERROR(CheckArg(args.num_tokens > 0 &&
                               args.num_tokens % int32_t{kDecodeSegmentTokens} == 0 &&
                               args.num_tokens <= int32_t{kPrefillSegmentTokens} &&
                               args.num_clusters == args.num_tokens / int32_t{kTokensPerCluster},
                           kOp, "needs a whole segment of 16 tokens a cluster"));
  RETURN_IF_ERROR(
      CheckArg(args.first_token >= 0 && args.first_token + args.num_tokens <= args.kv.capacity, kOp,
               "needs tokens inside the layer's KV"));
  const SegmentLayout layout(args.heads.ArenaOf(geometry), static_cast<uint32_t>(args.num_tokens));
  RETURN_IF_ERROR(CheckArg(args.extent.size() >= layout.max_pages * layout.page_bytes, kOp,
                           "needs an extent that holds any clustering of the segment"));
  const size_t h = geometry.num_kv_heads;
  const size_t n = static_cast<size_t>(args.num_tokens);
  const size_t m = layout.num_clusters;
  RETURN_IF_ERROR(CheckArg(args.assignment.size() >= h * n && args.sizes.size() >= h * m &&
                               args.centroids.size() >= h * m * geometry.head_dim &&
                               args.value_sums.size() >= h * m * geometry.head_dim &&
                               args.radii.size() >= h * m,
                           kOp, "needs the clusters of every KV head"));
  RETURN_IF_ERROR(CheckArg(args.meta_blocks.size() == m / kClustersPerMetaBlock, kOp,
                           "needs a meta block for each 64 clusters"));
  RETURN_IF_ERROR(CheckArg(args.fill.slots.empty() || args.fill.list.head != nullptr, kOp,
                           "needs a list of the slots to fill"));
  return CheckArg(args.next_page != nullptr && args.scratch.size() >= 8 * h * (n + m), kOp,
                  "needs next_page and scratch");
}

}  // namespace retroinfer
