// Checks of the arguments of norm_of_sum, shared by the backends.
#pragma once

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/collective/all_reduce_check.h"
#include "gpu_worker/ops/collective/norm_of_sum.h"
#include "gpu_worker/ops/model/rms_norm_check.h"

namespace retroinfer {

inline absl::Status CheckNormOfSum(const NormOfSumArgs& args, DType activations) {
  constexpr std::string_view kOp = "norm_of_sum";
  RETURN_IF_ERROR(CheckAllReduce(args.sum));
  RETURN_IF_ERROR(CheckDType(kOp, "sum", args.sum.out, activations));
  RETURN_IF_ERROR(CheckArg(!args.norms.empty() && args.norms.size() <= NormOfSumArgs::kMostNorms,
                           kOp, args.norms.size(), " norms; needs one or two"));
  const MatrixView* before = &args.sum.out;
  for (const RmsNormArgs& norm : args.norms) {
    RETURN_IF_ERROR(CheckRmsNorm(norm, activations));
    RETURN_IF_ERROR(
        CheckArg(norm.in.data == before->data && norm.in.row_stride == before->row_stride, kOp,
                 "a norm is of another matrix than the one before it gives"));
    RETURN_IF_ERROR(CheckShape(kOp, "in", norm.in, args.sum.out.rows, args.sum.out.cols));
    RETURN_IF_ERROR(CheckArg(norm.weight.cols == norm.in.cols, kOp, "a norm of heads"));
    before = &norm.out;
  }
  return absl::OkStatus();
}

}  // namespace retroinfer
