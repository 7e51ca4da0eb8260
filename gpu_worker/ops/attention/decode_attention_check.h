// Checks of the arguments of decode_attention, shared by the backends.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/attention/decode_attention.h"

namespace retroinfer {

// Query heads that may share a KV head.
inline constexpr int32_t kMaxDecodeGroup = 16;

// DecodeAttentionScratchBytes of a backend.
using DecodeScratchBytes = size_t (*)(int32_t max_batch, int32_t num_query_heads, int32_t head_dim);

// Returns INVALID_ARGUMENT unless shapes and sizes agree, queries and out have dtype `activations`,
// and scratch is as large as `scratch_bytes` wants it.
inline absl::Status CheckDecodeAttention(const DecodeAttentionArgs& args, DType activations,
                                         DecodeScratchBytes scratch_bytes) {
  constexpr std::string_view kOp = "decode_attention";
  const KvGeometry& geometry = args.pool.geometry;
  RETURN_IF_ERROR(geometry.Validate());
  const int64_t batch = args.queries.rows;
  const int64_t kv_heads = geometry.num_kv_heads;
  const int64_t kv_cols = kv_heads * geometry.head_dim;
  RETURN_IF_ERROR(CheckArg(args.layer < geometry.num_layers, kOp, "layer is outside of the pool"));
  RETURN_IF_ERROR(CheckShape(kOp, "queries", args.queries, batch, args.queries.cols));
  RETURN_IF_ERROR(CheckShape(kOp, "out", args.out, batch, args.queries.cols));
  RETURN_IF_ERROR(CheckDType(kOp, "queries", args.queries, activations));
  RETURN_IF_ERROR(CheckDType(kOp, "out", args.out, activations));
  RETURN_IF_ERROR(CheckArg(args.queries.cols > 0 && args.queries.cols % kv_cols == 0 &&
                               args.queries.cols / kv_cols <= kMaxDecodeGroup,
                           kOp, "query columns must be 1 to ", kMaxDecodeGroup, " times ",
                           kv_cols));
  RETURN_IF_ERROR(CheckSize(kOp, "zones", args.zones, batch));
  RETURN_IF_ERROR(CheckArg(std::isfinite(args.scale) && args.scale > 0, kOp,
                           "the scale must be a positive number, is ", args.scale));
  RETURN_IF_ERROR(CheckArg(args.window >= 0, kOp, "a window of ", args.window, " tokens"));
  if (!args.num_pages.empty()) {
    RETURN_IF_ERROR(CheckSize(kOp, "num_pages", args.num_pages, batch * kv_heads));
    RETURN_IF_ERROR(CheckSize(kOp, "pages", args.pages, batch * kv_heads * args.max_pages));
  }
  const int64_t query_heads = args.queries.cols / geometry.head_dim;
  if (!args.sinks.empty()) {
    RETURN_IF_ERROR(CheckSize(kOp, "sinks", args.sinks, query_heads));
  }
  if (!args.estimate.max.empty()) {
    RETURN_IF_ERROR(CheckSize(kOp, "estimate.max", args.estimate.max, batch * query_heads));
    RETURN_IF_ERROR(CheckSize(kOp, "estimate.sum", args.estimate.sum, batch * query_heads));
    RETURN_IF_ERROR(CheckSize(kOp, "estimate.acc", args.estimate.acc, batch * args.queries.cols));
  }
  if (!args.unseen_share.empty()) {
    RETURN_IF_ERROR(CheckSize(kOp, "unseen.max", args.unseen.max, batch * query_heads));
    RETURN_IF_ERROR(CheckSize(kOp, "unseen.sum", args.unseen.sum, batch * query_heads));
    RETURN_IF_ERROR(CheckSize(kOp, "unseen_share", args.unseen_share, batch * query_heads));
  }
  const size_t scratch =
      scratch_bytes(static_cast<int32_t>(batch), static_cast<int32_t>(query_heads),
                    static_cast<int32_t>(geometry.head_dim));
  return CheckSize(kOp, "scratch", args.scratch, static_cast<int64_t>(scratch));
}

}  // namespace retroinfer
