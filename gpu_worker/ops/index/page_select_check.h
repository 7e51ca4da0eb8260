// Checks of the arguments of the selection of pages, shared by the backends.
#pragma once

#include "absl/status/status.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/attention/decode_attention_check.h"
#include "gpu_worker/ops/index/page_select.h"

namespace retroinfer {

// Of both calls. Not the budgets: they lie in device memory. `activation`: element type of queries.
inline absl::Status CheckPageSelect(const PageSelectArgs& args, DType activation) {
  constexpr char kOp[] = "page_select";
  const KvGeometry& geometry = args.pool.geometry;
  RETURN_IF_ERROR(geometry.Validate());
  RETURN_IF_ERROR(CheckDType(kOp, "queries", args.queries, activation));
  const int64_t kv_heads = geometry.num_kv_heads;
  const int64_t batch = args.queries.rows;
  const int64_t query_heads = args.queries.cols / geometry.head_dim;
  RETURN_IF_ERROR(CheckArg(geometry.places_per_page() == 1, kOp, "needs clusters of whole pages"));
  RETURN_IF_ERROR(CheckArg(geometry.format.token_code_bits == 2, kOp,
                           "needs codes of 2 bits a channel; format ",
                           AbslView(geometry.format.name), " has none"));
  RETURN_IF_ERROR(CheckArg(query_heads * geometry.head_dim == args.queries.cols &&
                               query_heads > 0 && query_heads % kv_heads == 0 &&
                               query_heads / kv_heads <= kMaxDecodeGroup,
                           kOp, "needs 1 to ", kMaxDecodeGroup, " query heads for each KV head"));
  RETURN_IF_ERROR(CheckArg(args.layer < geometry.num_layers, kOp, "needs a layer of the pool"));
  RETURN_IF_ERROR(CheckArg(args.max_pages % 64 == 0, kOp, "needs max_pages in multiples of 64"));
  RETURN_IF_ERROR(CheckSize(kOp, "indexes", args.indexes, batch));
  RETURN_IF_ERROR(CheckSize(kOp, "budgets", args.budgets, batch));
  RETURN_IF_ERROR(CheckSize(kOp, "scores", args.scores, batch * query_heads * args.max_clusters));
  const int64_t rows = batch * kv_heads;
  RETURN_IF_ERROR(CheckSize(kOp, "candidates", args.candidates, rows * args.max_candidates));
  RETURN_IF_ERROR(CheckSize(kOp, "num_candidates", args.num_candidates, rows));
  RETURN_IF_ERROR(CheckSize(kOp, "chosen", args.chosen, rows * args.max_chosen));
  RETURN_IF_ERROR(CheckSize(kOp, "num_chosen", args.num_chosen, rows));
  RETURN_IF_ERROR(CheckSize(kOp, "num_tokens", args.num_tokens, rows));
  const PageSelectScratch& scratch = args.scratch;
  const int64_t query_rows = batch * query_heads;
  RETURN_IF_ERROR(CheckSize(kOp, "masses", scratch.masses, query_rows * args.max_pages));
  RETURN_IF_ERROR(CheckSize(kOp, "rests", scratch.rests, query_rows * args.max_pages));
  RETURN_IF_ERROR(CheckSize(kOp, "pages", scratch.pages, rows * args.max_pages));
  RETURN_IF_ERROR(CheckSize(kOp, "first_pages", scratch.first_pages, rows * args.max_candidates));
  return CheckSize(kOp, "num_pages", scratch.num_pages, rows);
}

}  // namespace retroinfer
