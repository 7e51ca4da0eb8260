// Checks of the arguments of read_segment_layer, shared by the backends.
#pragma once

#include "absl/status/status.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/index/read_segment_layer.h"

namespace retroinfer {

inline absl::Status CheckReadSegmentLayer(const ReadSegmentLayerArgs& args) {
  constexpr char kOp[] = "read_segment_layer";
  const KvGeometry& geometry = args.geometry;
  RETURN_IF_ERROR(geometry.Validate());
  RETURN_IF_ERROR(CheckArg(
      args.layer < geometry.num_layers && args.out.num_kv_heads == geometry.num_kv_heads &&
          args.out.head_dim == geometry.head_dim && args.out.dtype == geometry.format.prompt,
      kOp, "needs KV and layer of one geometry"));
  RETURN_IF_ERROR(CheckArg(args.num_tokens > 0 && args.num_tokens % kDecodeSegmentTokens == 0 &&
                               args.num_tokens <= kPrefillSegmentTokens,
                           kOp, "needs a whole segment"));
  RETURN_IF_ERROR(CheckArg(
      args.first_token >= 0 && args.first_token + int64_t{args.num_tokens} <= args.out.capacity,
      kOp, "needs rows inside the layer's KV"));
  RETURN_IF_ERROR(
      CheckArg(args.heads.Fits(geometry), kOp, "needs heads of the arena for those of the KV"));
  const SegmentLayout layout(args.heads.ArenaOf(geometry), args.num_tokens);
  return CheckArg(args.extent.size() >= layout.first_kv_page * layout.page_bytes, kOp,
                  "needs an extent that holds the segment's index");
}

}  // namespace retroinfer
