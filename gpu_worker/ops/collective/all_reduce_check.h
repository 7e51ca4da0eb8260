// Checks of the arguments of all_reduce, shared by the backends.
#pragma once

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/collective/all_reduce.h"

namespace retroinfer {

inline absl::Status CheckAllReduce(const AllReduceArgs& args) {
  constexpr std::string_view kOp = "all_reduce";
  const DType dtype = args.out.dtype;
  RETURN_IF_ERROR(CheckArg(dtype == DType::kF32 || dtype == DType::kBf16, kOp, "out is ",
                           AbslView(DTypeName(dtype)), "; needs f32 or bf16"));
  RETURN_IF_ERROR(CheckDType(kOp, "in", args.in, dtype));
  RETURN_IF_ERROR(CheckShape(kOp, "in", args.in, args.out.rows, args.out.cols));
  RETURN_IF_ERROR(CheckShape(kOp, "out", args.out, args.out.rows, args.out.cols));
  return CheckArg(!args.accumulate || args.in.data != args.out.data || args.in.rows == 0, kOp,
                  "in is out, which is added to");
}

}  // namespace retroinfer
