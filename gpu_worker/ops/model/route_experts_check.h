// Checks of the arguments of route_experts, and of routes, shared by the backends.
#pragma once

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/model/route_experts.h"

namespace retroinfer {

inline absl::Status CheckRoutes(std::string_view op, const ExpertRoutes& routes, int64_t rows,
                                bool decode) {
  RETURN_IF_ERROR(CheckArg(routes.num_experts >= 1 && routes.num_experts <= kMostExperts, op,
                           routes.num_experts, " experts; 1 to ", kMostExperts, " are possible"));
  const int64_t most = std::min(routes.num_experts, kMostExpertsPerRow);
  RETURN_IF_ERROR(CheckArg(routes.per_row >= 1 && routes.per_row <= most, op, "a row takes ",
                           routes.per_row, " experts; it may take 1 to ", most));
  if (rows == 0) return absl::OkStatus();
  const RoutePlan plan = RoutePlan::Of(routes.num_experts, routes.per_row, rows, decode);
  RETURN_IF_ERROR(CheckSize(op, "experts", routes.experts, rows * routes.per_row));
  RETURN_IF_ERROR(CheckSize(op, "weights", routes.weights, rows * routes.per_row));
  return CheckSize(op, "plan", routes.plan, plan.Words(rows));
}

inline absl::Status CheckRouteExperts(const RouteExpertsArgs& args) {
  RETURN_IF_ERROR(CheckRoutes("route_experts", args.routes, args.scores.rows, args.decode));
  RETURN_IF_ERROR(CheckShape("route_experts", "scores", args.scores, args.scores.rows,
                             args.routes.num_experts));
  return CheckDType("route_experts", "scores", args.scores, DType::kF32);
}

}  // namespace retroinfer
