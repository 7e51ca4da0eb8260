// Checks of the arguments of rms_norm, shared by the backends.
#pragma once

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/model/rms_norm.h"

namespace retroinfer {

inline absl::Status CheckRmsNorm(const RmsNormArgs& args, DType activations) {
  RETURN_IF_ERROR(CheckShape("rms_norm", "in", args.in, args.in.rows, args.in.cols));
  RETURN_IF_ERROR(CheckShape("rms_norm", "weight", args.weight, 1, args.weight.cols));
  RETURN_IF_ERROR(CheckArg(args.weight.cols > 0 && args.in.cols % args.weight.cols == 0, "rms_norm",
                           "the columns of in must be a multiple of the weight's"));
  RETURN_IF_ERROR(CheckShape("rms_norm", "out", args.out, args.in.rows, args.in.cols));
  RETURN_IF_ERROR(CheckDType("rms_norm", "in", args.in, activations));
  RETURN_IF_ERROR(CheckDType("rms_norm", "out", args.out, activations));
  RETURN_IF_ERROR(CheckArg(!args.accumulate || args.in.data != args.out.data, "rms_norm",
                           "out must not be in where it is added to"));
  return CheckArg(args.epsilon > 0, "rms_norm", "epsilon must be positive");
}

}  // namespace retroinfer
