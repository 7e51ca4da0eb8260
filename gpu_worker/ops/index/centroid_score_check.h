// Checks of the arguments of the scoring of clusters, shared by the backends.
#pragma once

#include "absl/status/status.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/index/centroid_score.h"

namespace retroinfer {

// `activation`: element type of queries.
inline absl::Status CheckCentroidScore(const CentroidScoreArgs& args, DType activation) {
  constexpr char kOp[] = "centroid_score";
  const KvGeometry& geometry = args.pool.geometry;
  const int64_t head_dim = geometry.head_dim;
  const int64_t query_heads = head_dim == 0 ? 0 : args.queries.cols / head_dim;
  RETURN_IF_ERROR(geometry.Validate());
  RETURN_IF_ERROR(CheckDType(kOp, "queries", args.queries, activation));
  RETURN_IF_ERROR(CheckArg(query_heads * head_dim == args.queries.cols && query_heads > 0 &&
                               query_heads % geometry.num_kv_heads == 0,
                           kOp, "needs a multiple of kv_heads as query heads"));
  RETURN_IF_ERROR(CheckArg(args.layer < geometry.num_layers, kOp, "needs a layer of the pool"));
  RETURN_IF_ERROR(CheckArg(args.max_clusters % kClustersPerMetaBlock == 0, kOp,
                           "needs max_clusters in multiples of 64"));
  RETURN_IF_ERROR(CheckArg(static_cast<int64_t>(args.indexes.size()) == args.queries.rows, kOp,
                           "needs an index for each row of queries"));
  const int64_t size = args.queries.rows * query_heads * args.max_clusters;
  RETURN_IF_ERROR(CheckArg(
      args.radius_weight == 0 ||
          (args.radius_weight > 0 && static_cast<int64_t>(args.ranks.size()) >= size),
      kOp, "needs radius_weight >= 0, and ranks of batch * query_heads * max_clusters with one"));
  return CheckArg(static_cast<int64_t>(args.scores.size()) >= size, kOp,
                  "needs scores of batch * query_heads * max_clusters");
}

}  // namespace retroinfer
