// Checks of the arguments of share_retrieved, shared by the backends.
#pragma once

#include "absl/status/status.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/index/share_retrieved.h"

namespace retroinfer {

// Not the runs, nor what the lists hold: they lie in device memory.
inline absl::Status CheckShareRetrieved(const ShareRetrievedArgs& args) {
  constexpr char kOp[] = "share_retrieved";
  RETURN_IF_ERROR(CheckArg(args.num_kv_heads > 0 && args.batch >= 0 && args.max_clusters >= 0 &&
                               args.max_retrieved >= 0 && args.max_estimated >= 0,
                           kOp, "needs KV heads, and sizes that are not negative"));
  const int64_t rows = int64_t{args.batch} * args.num_kv_heads;
  RETURN_IF_ERROR(CheckArg(args.runs.size() <= static_cast<size_t>(args.batch), kOp,
                           args.runs.size(), " runs of ", args.batch, " rows"));
  RETURN_IF_ERROR(CheckSize(kOp, "retrieved", args.retrieved, rows * args.max_retrieved));
  RETURN_IF_ERROR(CheckSize(kOp, "num_retrieved", args.num_retrieved, rows));
  RETURN_IF_ERROR(CheckSize(kOp, "estimated", args.estimated, rows * args.max_estimated));
  RETURN_IF_ERROR(CheckSize(kOp, "num_estimated", args.num_estimated, rows));
  return CheckSize(kOp, "scratch", args.scratch,
                   static_cast<int64_t>(ShareRetrievedScratchBytes(
                       args.runs.size(), args.num_kv_heads, args.max_clusters)));
}

}  // namespace retroinfer
