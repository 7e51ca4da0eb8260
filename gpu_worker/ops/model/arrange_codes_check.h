// Checks of the arguments of arrange_codes, shared by the backends.
#pragma once

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/model/arrange_codes.h"

namespace retroinfer {

inline absl::Status CheckArrangeCodes(const ArrangeCodesArgs& args) {
  RETURN_IF_ERROR(CheckArg(args.rows >= 0 && args.cols >= 0, "arrange_codes", "the matrix is [",
                           args.rows, ", ", args.cols, "]"));
  RETURN_IF_ERROR(CheckSize("arrange_codes", "in", args.in,
                            static_cast<int64_t>(args.order.Bytes(args.rows, args.cols))));
  RETURN_IF_ERROR(CheckSize("arrange_codes", "out", args.out,
                            static_cast<int64_t>(kCodesInRows.Bytes(args.rows, args.cols))));
  const bool aligned = reinterpret_cast<uintptr_t>(args.in.device_data()) % 4 == 0 &&
                       reinterpret_cast<uintptr_t>(args.out.device_data()) % 4 == 0;
  RETURN_IF_ERROR(CheckArg(aligned, "arrange_codes", "in and out need whole words of 4 bytes"));
  return args.columns.empty() ? absl::OkStatus()
                              : CheckSize("arrange_codes", "columns", args.columns, args.cols);
}

}  // namespace retroinfer
