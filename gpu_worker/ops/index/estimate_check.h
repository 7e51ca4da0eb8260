// Checks of the arguments of the estimation, shared by the backends.
#pragma once

#include "absl/status/status.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/index/estimate.h"

namespace retroinfer {

inline absl::Status CheckEstimate(const EstimateArgs& args) {
  constexpr char kOp[] = "estimate";
  const KvGeometry& geometry = args.pool.geometry;
  RETURN_IF_ERROR(geometry.Validate());
  RETURN_IF_ERROR(
      CheckArg(args.num_query_heads > 0 &&
                   static_cast<uint32_t>(args.num_query_heads) % geometry.num_kv_heads == 0,
               kOp, "needs a multiple of kv_heads as query heads"));
  RETURN_IF_ERROR(CheckArg(args.layer < geometry.num_layers, kOp, "needs a layer of the pool"));
  const size_t batch = static_cast<size_t>(args.batch);
  const size_t query_rows = batch * static_cast<size_t>(args.num_query_heads);
  const size_t rows = batch * geometry.num_kv_heads;
  RETURN_IF_ERROR(CheckArg(args.indexes.size() == batch, kOp, "needs an index for each sequence"));
  RETURN_IF_ERROR(
      CheckArg(args.scores.size() >= query_rows * static_cast<size_t>(args.max_clusters), kOp,
               "needs scores of batch * query_heads * max_clusters"));
  RETURN_IF_ERROR(
      CheckArg(args.estimated.size() >= rows * static_cast<size_t>(args.max_estimated) &&
                   args.num_estimated.size() >= rows,
               kOp, "needs clusters for every sequence and KV head"));
  RETURN_IF_ERROR(
      CheckArg(args.max_candidates == 0 ||
                   (args.candidates.size() >= rows * static_cast<size_t>(args.max_candidates) &&
                    args.num_candidates.size() >= rows),
               kOp, "needs candidates for every sequence and KV head"));
  return CheckArg(args.out.max.size() >= query_rows && args.out.sum.size() >= query_rows &&
                      args.out.acc.size() >= query_rows * geometry.head_dim,
                  kOp, "needs partial results for every sequence and query head");
}

}  // namespace retroinfer
