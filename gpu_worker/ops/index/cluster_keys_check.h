// Checks of the arguments of cluster_keys, shared by the backends.
#pragma once

#include "absl/status/status.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/index/cluster_keys.h"

namespace retroinfer {

// `scratch_bytes`: what the backend needs.
inline absl::Status CheckClusterKeys(const ClusterKeysArgs& args, size_t scratch_bytes) {
  constexpr char kOp[] = "cluster_keys";
  const int64_t heads = args.kv.num_kv_heads, n = args.num_tokens, m = args.num_clusters,
                d = args.kv.head_dim;
  RETURN_IF_ERROR(CheckArg(heads > 0 && IsHeadDim(d), kOp, "needs head_dim 64, 128 or 256"));
  RETURN_IF_ERROR(CheckArg(n > 0 && n % int64_t{kDecodeSegmentTokens} == 0 &&
                               n <= int64_t{kPrefillSegmentTokens} &&
                               m == n / int64_t{kTokensPerCluster},
                           kOp, "needs a whole segment of 16 tokens a cluster"));
  RETURN_IF_ERROR(CheckArg(args.first_token >= 0 && args.first_token + n <= args.kv.capacity, kOp,
                           "needs tokens inside the layer's KV"));
  RETURN_IF_ERROR(CheckArg(args.rounds >= 0, kOp, "needs rounds >= 0"));
  RETURN_IF_ERROR(CheckSize(kOp, "assignment", args.assignment, heads * n));
  RETURN_IF_ERROR(CheckSize(kOp, "sizes", args.sizes, heads * m));
  RETURN_IF_ERROR(CheckSize(kOp, "centroids", args.centroids, heads * m * d));
  RETURN_IF_ERROR(CheckSize(kOp, "value_sums", args.value_sums, heads * m * d));
  RETURN_IF_ERROR(CheckSize(kOp, "radii", args.radii, heads * m));
  return CheckSize(kOp, "scratch", args.scratch, static_cast<int64_t>(scratch_bytes));
}

}  // namespace retroinfer
