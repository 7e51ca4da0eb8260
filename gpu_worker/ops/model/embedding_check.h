// Checks of the arguments of embedding, shared by the backends.
#pragma once

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/model/embedding.h"

namespace retroinfer {

// `activations` is the backend's activation dtype, here and in the other checks.
inline absl::Status CheckEmbedding(const EmbeddingArgs& args, DType activations) {
  const auto rows = static_cast<int64_t>(args.token_ids.size());
  RETURN_IF_ERROR(CheckShape("embedding", "table", args.table, args.table.rows, args.out.cols));
  RETURN_IF_ERROR(CheckShape("embedding", "out", args.out, rows, args.table.cols));
  return CheckDType("embedding", "out", args.out, activations);
}

}  // namespace retroinfer
