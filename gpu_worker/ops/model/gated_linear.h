// out = f(in * gate^T) * (in * up^T): the first half of a feed-forward network (silu_mul.h) in one
// call, for backends that need not write the two products down.
//
// Batch-invariant as linear is.
#pragma once

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/model/linear.h"
#include "gpu_worker/ops/model/silu_mul.h"

namespace retroinfer {

struct GatedLinearArgs {
  const PreparedLinear* linear = nullptr;  // 2 f features: gate, then up
  MatrixView in;                           // [n, in_features], activation dtype
  MatrixView gate_up;                      // [n, 2 f], activation dtype: scratch
  MatrixView out;                          // [n, f]; may be the first columns of gate_up
  bool decode = false;                     // as LinearArgs
  GatedActivation activation = GatedActivation::kSilu;
};

inline absl::Status CheckGatedLinear(const GatedLinearArgs& args, DType activations) {
  RETURN_IF_ERROR(CheckArg(args.linear != nullptr, "gated_linear", "no weights were given"));
  const int64_t features = args.linear->out_features();
  RETURN_IF_ERROR(CheckArg(features % 2 == 0, "gated_linear", "the weight has ", features,
                           " features; gate and up need as many each"));
  const int64_t rows = args.in.rows;
  RETURN_IF_ERROR(CheckShape("gated_linear", "in", args.in, rows, args.linear->in_features()));
  RETURN_IF_ERROR(CheckShape("gated_linear", "gate_up", args.gate_up, rows, features));
  RETURN_IF_ERROR(CheckShape("gated_linear", "out", args.out, rows, features / 2));
  RETURN_IF_ERROR(CheckDType("gated_linear", "in", args.in, activations));
  RETURN_IF_ERROR(CheckDType("gated_linear", "gate_up", args.gate_up, activations));
  return CheckDType("gated_linear", "out", args.out, activations);
}

// The two operations that it stands for. `AnyOps` has Linear and SiluMul.
template <typename AnyOps, typename AnyStream>
absl::Status GatedLinearInSteps(AnyOps& ops, AnyStream& stream, const GatedLinearArgs& args) {
  RETURN_IF_ERROR(ops.Linear(
      stream, {.linear = args.linear, .in = args.in, .out = args.gate_up, .decode = args.decode}));
  const int64_t features = args.out.cols;
  return ops.SiluMul(stream, {.gate = args.gate_up.Columns(0, features),
                              .up = args.gate_up.Columns(features, features),
                              .out = args.out,
                              .activation = args.activation});
}

}  // namespace retroinfer
