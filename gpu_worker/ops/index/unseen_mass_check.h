// Checks of the arguments of the unseen mass, shared by the backends.
#pragma once

#include "absl/status/status.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/attention/decode_attention_check.h"
#include "gpu_worker/ops/index/unseen_mass.h"

namespace retroinfer {

inline absl::Status CheckUnseenMass(const UnseenMassArgs& args) {
  constexpr char kOp[] = "unseen_mass";
  const KvGeometry& geometry = args.pool.geometry;
  RETURN_IF_ERROR(geometry.Validate());
  const auto kv_heads = static_cast<int32_t>(geometry.num_kv_heads);
  RETURN_IF_ERROR(CheckArg(args.num_query_heads > 0 && args.num_query_heads % kv_heads == 0 &&
                               args.num_query_heads / kv_heads <= kMaxDecodeGroup,
                           kOp, "needs 1 to ", kMaxDecodeGroup, " query heads for each KV head"));
  RETURN_IF_ERROR(CheckArg(args.layer < geometry.num_layers, kOp, "needs a layer of the pool"));
  const int64_t query_rows = int64_t{args.batch} * args.num_query_heads;
  const int64_t rows = int64_t{args.batch} * kv_heads;
  RETURN_IF_ERROR(CheckSize(kOp, "indexes", args.indexes, args.batch));
  RETURN_IF_ERROR(CheckSize(kOp, "scores", args.scores, query_rows * args.max_clusters));
  RETURN_IF_ERROR(CheckSize(kOp, "retrieved", args.retrieved, rows * args.max_retrieved));
  RETURN_IF_ERROR(
      CheckSize(kOp, "num_retrieved", args.num_retrieved, args.max_retrieved == 0 ? 0 : rows));
  RETURN_IF_ERROR(CheckSize(kOp, "out.max", args.out.max, query_rows));
  return CheckSize(kOp, "out.sum", args.out.sum, query_rows);
}

}  // namespace retroinfer
