// Checks of the arguments of the selection of clusters, shared by the backends.
#pragma once

#include "absl/status/status.h"
#include "common/kv/kv_geometry.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/index/cluster_select.h"

namespace retroinfer {

// Not the budgets: they lie in device memory.
inline absl::Status CheckClusterSelect(const ClusterSelectArgs& args) {
  constexpr char kOp[] = "cluster_select";
  RETURN_IF_ERROR(CheckArg(args.num_kv_heads > 0 && args.num_query_heads > 0 &&
                               args.num_query_heads % args.num_kv_heads == 0,
                           kOp, "needs a multiple of kv_heads as query heads"));
  RETURN_IF_ERROR(CheckArg(args.max_clusters % kClustersPerMetaBlock == 0, kOp,
                           "needs max_clusters in multiples of 64"));
  const size_t batch = static_cast<size_t>(args.batch);
  const size_t rows = batch * static_cast<size_t>(args.num_kv_heads);
  RETURN_IF_ERROR(CheckArg(args.budgets.size() == batch, kOp, "needs a budget for each sequence"));
  RETURN_IF_ERROR(CheckArg(args.scores.size() >= batch * static_cast<size_t>(args.num_query_heads) *
                                                     static_cast<size_t>(args.max_clusters),
                           kOp, "needs scores of batch * query_heads * max_clusters"));
  RETURN_IF_ERROR(
      CheckArg(args.retrieved.size() >= rows * static_cast<size_t>(args.max_retrieved) &&
                   args.estimated.size() >= rows * static_cast<size_t>(args.max_estimated) &&
                   args.num_retrieved.size() >= rows && args.num_estimated.size() >= rows,
               kOp, "needs room for the zones of every sequence and KV head"));
  RETURN_IF_ERROR(CheckArg(args.scratch.size() >= rows * static_cast<size_t>(args.max_clusters) * 8,
                           kOp, "needs scratch of 8 * batch * kv_heads * max_clusters bytes"));
  return absl::OkStatus();
}

}  // namespace retroinfer
