// Checks of the arguments of rope_table and rope, shared by the backends.
#pragma once

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/model/rope.h"

namespace retroinfer {

inline absl::Status CheckRopeTable(const RopeTableArgs& args) {
  const auto size = static_cast<int64_t>(args.positions.size() * args.inv_freq.size());
  RETURN_IF_ERROR(CheckSize("rope_table", "cos", args.cos, size));
  RETURN_IF_ERROR(
      CheckArg(args.growth_positions > 0, "rope_table", "growth_positions must be positive"));
  return CheckSize("rope_table", "sin", args.sin, size);
}

inline absl::Status CheckRope(const RopeArgs& args, DType activations) {
  RETURN_IF_ERROR(CheckArg(args.head_dim > 0 && args.head_dim % 2 == 0, "rope",
                           "head_dim must be even and positive"));
  RETURN_IF_ERROR(CheckArg(args.rotated_dims <= args.head_dim && args.rotated_dims % 2 == 0, "rope",
                           "rotated_dims must be even, and at most head_dim"));
  RETURN_IF_ERROR(CheckShape("rope", "x", args.x, args.x.rows, args.x.cols));
  RETURN_IF_ERROR(CheckArg(args.x.cols % args.head_dim == 0, "rope",
                           "columns of x must be a multiple of head_dim"));
  RETURN_IF_ERROR(CheckDType("rope", "x", args.x, activations));
  RETURN_IF_ERROR(CheckArg(args.offsets.size() % args.head_dim == 0 &&
                               static_cast<int64_t>(args.offsets.size()) <= args.x.cols,
                           "rope", "offsets must be of whole heads of x, are ",
                           args.offsets.size()));
  RETURN_IF_ERROR(CheckArg(args.offsets.empty() || args.half() * 2 == args.head_dim, "rope",
                           "offsets are for heads that are rotated as a whole"));
  RETURN_IF_ERROR(CheckSize("rope", "cos", args.cos, args.x.rows * args.half()));
  return CheckSize("rope", "sin", args.sin, args.x.rows * args.half());
}

}  // namespace retroinfer
