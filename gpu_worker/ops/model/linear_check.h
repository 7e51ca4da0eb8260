// Checks of the arguments of prepare_linear and linear, shared by the backends.
#pragma once

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/model/linear.h"

namespace retroinfer {

inline absl::Status CheckLinearWeights(const LinearWeights& weights) {
  const MatrixView weight = weights.weight.Numbers();
  RETURN_IF_ERROR(CheckShape("prepare_linear", "weight", weight, weight.rows, weight.cols));
  RETURN_IF_ERROR(
      CheckArg(weight.rows > 0 && weight.cols > 0, "prepare_linear", "the weight is empty"));
  if (!weights.bias.has_value()) return absl::OkStatus();
  return CheckShape("prepare_linear", "bias", weights.bias->Numbers(), 1, weight.rows);
}

// The dtype of `out` is the backend's to check.
inline absl::Status CheckLinear(const LinearArgs& args, DType activations) {
  RETURN_IF_ERROR(CheckArg(args.linear != nullptr, "linear", "no weights were given"));
  const int64_t rows = args.in.rows;
  RETURN_IF_ERROR(CheckShape("linear", "in", args.in, rows, args.linear->in_features()));
  RETURN_IF_ERROR(CheckShape("linear", "out", args.out, rows, args.linear->out_features()));
  return CheckDType("linear", "in", args.in, activations);
}

}  // namespace retroinfer
