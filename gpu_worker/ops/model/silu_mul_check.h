// Checks of the arguments of silu_mul, shared by the backends.
#pragma once

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/model/silu_mul.h"

namespace retroinfer {

inline absl::Status CheckSiluMul(const SiluMulArgs& args, DType activations) {
  RETURN_IF_ERROR(CheckShape("silu_mul", "gate", args.gate, args.out.rows, args.out.cols));
  RETURN_IF_ERROR(CheckShape("silu_mul", "up", args.up, args.out.rows, args.out.cols));
  RETURN_IF_ERROR(CheckShape("silu_mul", "out", args.out, args.out.rows, args.out.cols));
  RETURN_IF_ERROR(CheckDType("silu_mul", "gate", args.gate, activations));
  RETURN_IF_ERROR(CheckDType("silu_mul", "up", args.up, activations));
  return CheckDType("silu_mul", "out", args.out, activations);
}

}  // namespace retroinfer
