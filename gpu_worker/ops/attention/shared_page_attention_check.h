// Checks of the arguments of shared_page_attention, shared by the backends.
#pragma once

#include <cmath>
#include <string_view>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/attention/decode_attention_check.h"
#include "gpu_worker/ops/attention/shared_page_attention.h"

namespace retroinfer {

// Not the runs, nor the lists: they lie in device memory.
inline absl::Status CheckSharedPageAttention(const SharedPageAttentionArgs& args,
                                             DType activations) {
  constexpr std::string_view kOp = "shared_page_attention";
  const KvGeometry& geometry = args.geometry;
  RETURN_IF_ERROR(geometry.Validate());
  const int64_t batch = args.queries.rows;
  const int64_t kv_heads = geometry.num_kv_heads;
  const int64_t kv_cols = kv_heads * geometry.head_dim;
  RETURN_IF_ERROR(CheckShape(kOp, "queries", args.queries, batch, args.queries.cols));
  RETURN_IF_ERROR(CheckDType(kOp, "queries", args.queries, activations));
  RETURN_IF_ERROR(CheckArg(args.queries.cols > 0 && args.queries.cols % kv_cols == 0 &&
                               args.queries.cols / kv_cols <= kMaxDecodeGroup,
                           kOp, "query columns must be 1 to ", kMaxDecodeGroup, " times ",
                           kv_cols));
  RETURN_IF_ERROR(CheckArg(args.runs.size() <= static_cast<size_t>(batch), kOp, args.runs.size(),
                           " runs of ", batch, " rows"));
  RETURN_IF_ERROR(CheckArg(std::isfinite(args.scale) && args.scale > 0, kOp,
                           "the scale must be a positive number, is ", args.scale));
  RETURN_IF_ERROR(CheckSize(kOp, "num_pages", args.num_pages, batch * kv_heads));
  RETURN_IF_ERROR(CheckSize(kOp, "pages", args.pages, batch * kv_heads * args.max_pages));
  const int64_t query_heads = args.queries.cols / geometry.head_dim;
  RETURN_IF_ERROR(CheckSize(kOp, "sums.max", args.sums.max, batch * query_heads));
  RETURN_IF_ERROR(CheckSize(kOp, "sums.sum", args.sums.sum, batch * query_heads));
  return CheckSize(kOp, "sums.acc", args.sums.acc, batch * args.queries.cols);
}

}  // namespace retroinfer
