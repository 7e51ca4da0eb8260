// What prefill attention asks of its arguments, on every backend.
#pragma once

#include <cmath>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/attention/prefill_attention.h"

namespace retroinfer {

// The largest head that a backend's tiles have room for.
inline constexpr uint32_t kMaxPrefillHeadDim = kMaxHeadDim;

inline absl::Status CheckPrefillAttention(const PrefillAttentionArgs& args,
                                          DType activation_dtype) {
  constexpr std::string_view kOp = "prefill_attention";
  const LayerKv& kv = args.kv;
  RETURN_IF_ERROR(
      CheckArg(kv.head_dim > 0 && kv.head_dim % 32 == 0 && kv.head_dim <= kMaxPrefillHeadDim, kOp,
               "head_dim is ", kv.head_dim));
  RETURN_IF_ERROR(CheckArg(kv.num_kv_heads > 0, kOp, "KV must have heads"));
  RETURN_IF_ERROR(CheckArg(args.queries.cols % (int64_t{kv.num_kv_heads} * kv.head_dim) == 0, kOp,
                           "query columns must be a multiple of kv_heads * head_dim"));
  RETURN_IF_ERROR(CheckShape(kOp, "queries", args.queries, args.queries.rows, args.queries.cols));
  RETURN_IF_ERROR(CheckShape(kOp, "out", args.out, args.queries.rows, args.queries.cols));
  RETURN_IF_ERROR(CheckDType(kOp, "queries", args.queries, activation_dtype));
  RETURN_IF_ERROR(CheckDType(kOp, "out", args.out, activation_dtype));
  RETURN_IF_ERROR(CheckArg(std::isfinite(args.scale) && args.scale > 0, kOp,
                           "the scale must be a positive number, is ", args.scale));
  const AttentionWindow& window = args.window;
  RETURN_IF_ERROR(CheckArg(window.tokens >= 0 && window.step > 0 &&
                               window.tokens % window.step == 0 && window.always_seen >= 0 &&
                               window.always_seen <= kMaxAlwaysSeen,
                           kOp, "a window of ", window.tokens, " tokens in steps of ", window.step,
                           " behind ", window.always_seen, " that are always seen"));
  const BlockChoice& choice = args.choice;
  RETURN_IF_ERROR(CheckArg(choice.threshold >= 0 && choice.threshold < 1 &&
                               choice.dense_before >= 0 && (!choice.chooses() || window.sees_all()),
                           kOp, "a choice of blocks for ", choice.threshold,
                           " of the weight, from token ", choice.dense_before,
                           " on: needs 0 to 1, and no window"));
  if (!args.sinks.empty()) {
    RETURN_IF_ERROR(CheckSize(kOp, "sinks", args.sinks, args.queries.cols / kv.head_dim));
  }
  return CheckArg(args.first_token >= 0 && args.first_token + args.queries.rows <= kv.capacity, kOp,
                  "tokens up to ", args.first_token + args.queries.rows, " of KV for ",
                  kv.capacity);
}

}  // namespace retroinfer
