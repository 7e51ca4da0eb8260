// Checks of the arguments of all_gather, shared by the backends.
#pragma once

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/collective/all_gather.h"

namespace retroinfer {

inline absl::Status CheckAllGather(const AllGatherArgs& args, const TensorParallel& parallel) {
  constexpr std::string_view kOp = "all_gather";
  RETURN_IF_ERROR(CheckArg(args.unit > 0, kOp, "a unit of ", args.unit, " columns"));
  RETURN_IF_ERROR(CheckDType(kOp, "in", args.in, DType::kF32));
  RETURN_IF_ERROR(CheckDType(kOp, "out", args.out, DType::kF32));
  RETURN_IF_ERROR(CheckShape(kOp, "out", args.out, args.out.rows, args.out.cols));
  const Share share = ShareOf(parallel, args.out.cols, args.unit);
  RETURN_IF_ERROR(CheckArg(share.count > 0 || args.out.cols == 0, kOp, args.out.cols,
                           " columns in units of ", args.unit, " leave rank ", parallel.rank,
                           " of ", parallel.num_ranks, " nothing"));
  return CheckShape(kOp, "in", args.in, args.out.rows, share.count);
}

}  // namespace retroinfer
