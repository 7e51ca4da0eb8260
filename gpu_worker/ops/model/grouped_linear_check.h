// Checks of the arguments of grouped_linear, shared by the backends.
#pragma once

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/model/grouped_linear.h"
#include "gpu_worker/ops/model/route_experts_check.h"

namespace retroinfer {

// `parts`: of an expert.
inline absl::Status CheckGroupedWeight(std::string_view op, const PreparedLinear* linear,
                                       const ExpertRoutes& routes, int64_t parts) {
  RETURN_IF_ERROR(CheckArg(linear != nullptr, op, "no weights were given"));
  RETURN_IF_ERROR(CheckArg(linear->num_parts() == parts * routes.num_experts, op, "the weight has ",
                           linear->num_parts(), " parts; needs ", parts, " for each of ",
                           routes.num_experts, " experts"));
  return CheckArg(linear->in_features() % 8 == 0, op, "the weight has ", linear->in_features(),
                  " input features; needs a multiple of 8");
}

inline absl::Status CheckGroupedGatedLinear(const GroupedGatedLinearArgs& args, DType activations) {
  constexpr std::string_view kOp = "grouped_gated_linear";
  const int64_t rows = args.in.rows;
  RETURN_IF_ERROR(CheckRoutes(kOp, args.routes, rows, args.decode));
  RETURN_IF_ERROR(CheckGroupedWeight(kOp, args.linear, args.routes, 2));
  RETURN_IF_ERROR(CheckShape(kOp, "in", args.in, rows, args.linear->in_features()));
  RETURN_IF_ERROR(CheckShape(kOp, "out", args.out, rows * args.routes.per_row,
                             args.linear->out_features() / args.linear->num_parts()));
  RETURN_IF_ERROR(CheckDType(kOp, "in", args.in, activations));
  return CheckDType(kOp, "out", args.out, activations);
}

inline absl::Status CheckGroupedLinear(const GroupedLinearArgs& args, DType activations) {
  constexpr std::string_view kOp = "grouped_linear";
  const int64_t rows = args.out.rows;
  const int64_t pairs = rows * args.routes.per_row;
  RETURN_IF_ERROR(CheckRoutes(kOp, args.routes, rows, args.decode));
  RETURN_IF_ERROR(CheckGroupedWeight(kOp, args.linear, args.routes, 1));
  const int64_t features = args.linear->out_features() / args.linear->num_parts();
  RETURN_IF_ERROR(CheckShape(kOp, "in", args.in, pairs, args.linear->in_features()));
  RETURN_IF_ERROR(CheckShape(kOp, "products", args.products, pairs, features));
  RETURN_IF_ERROR(CheckShape(kOp, "out", args.out, rows, features));
  RETURN_IF_ERROR(CheckDType(kOp, "in", args.in, activations));
  RETURN_IF_ERROR(CheckDType(kOp, "products", args.products, activations));
  return CheckDType(kOp, "out", args.out, activations);
}

}  // namespace retroinfer
