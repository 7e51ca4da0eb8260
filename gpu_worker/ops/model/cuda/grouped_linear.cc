#include "gpu_worker/ops/model/cuda/grouped_linear.h"

#include "common/status/status_macros.h"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/model/cuda/cuda_linear.h"
#include "gpu_worker/ops/model/cuda/grouped_launch.h"
#include "gpu_worker/ops/model/cuda/int4_layout.h"
#include "gpu_worker/ops/model/grouped_linear_check.h"

namespace retroinfer::cuda {
namespace {

absl::Status CheckAligned(std::string_view op, std::string_view name, const MatrixView& view) {
  return CheckArg(HasAlignedRows(view), op, AbslView(name), " has rows of ", view.cols,
                  " columns, ", view.row_stride,
                  " apart, that are not aligned to 16 bytes; needs multiples of 8");
}

// All but the activations. `few`: as the routes were made for.
absl::StatusOr<GroupedLaunch> LaunchOf(std::string_view op, const PreparedLinear& prepared,
                                       const ExpertRoutes& routes, int64_t rows, bool few) {
  const auto& linear = static_cast<const CudaLinear&>(prepared);
  GroupedLaunch launch = {.weight = linear.Grouped(),
                          .in_features = linear.in_features(),
                          .features = linear.out_features() / linear.num_parts(),
                          .bias = linear.BiasF32(),
                          .rows = rows,
                          .plan = RoutePlan::Of(routes.num_experts, routes.per_row, rows, few),
                          .words = routes.plan.device_data(),
                          .weights = routes.weights.device_data()};
  RETURN_IF_ERROR(CheckArg(launch.weight.form != GroupedForm::kNone, op,
                           "int4 weights whose columns are permuted are not multiplied for "
                           "experts"));
  RETURN_IF_ERROR(CheckArg(launch.weight.groups == nullptr || launch.features % kInt4TileRows == 0,
                           op, "an expert has ", launch.features,
                           " features; int4 weights need a multiple of ", kInt4TileRows));
  return launch;
}

void SetMatrices(const MatrixView& in, const MatrixView& out, GroupedLaunch& launch) {
  launch.in = in.data;
  launch.in_stride = in.row_stride;
  launch.out = out.data;
  launch.out_stride = out.row_stride;
}

}  // namespace

cudaError_t PrepareGrouped() {
  const cudaError_t code = PrepareGroupedFew();
  return code != cudaSuccess ? code : PrepareGroupedMany();
}

absl::Status GroupedGatedLinear(CudaStream& stream, const GroupedGatedLinearArgs& args) {
  constexpr std::string_view kOp = "grouped_gated_linear";
  RETURN_IF_ERROR(CheckGroupedGatedLinear(args, DType::kBf16));
  RETURN_IF_ERROR(CheckAligned(kOp, "in", args.in));
  if (args.in.rows == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(GroupedLaunch launch,
                   LaunchOf(kOp, *args.linear, args.routes, args.in.rows, args.decode));
  launch.activation = args.activation;
  SetMatrices(args.in, args.out, launch);
  return CudaStatus(args.decode ? LaunchGroupedGatedFew(launch, stream.get())
                                : LaunchGroupedGatedMany(launch, stream.get()),
                    "launching grouped_gated_linear");
}

absl::Status GroupedLinear(CudaStream& stream, const GroupedLinearArgs& args) {
  constexpr std::string_view kOp = "grouped_linear";
  RETURN_IF_ERROR(CheckGroupedLinear(args, DType::kBf16));
  RETURN_IF_ERROR(CheckAligned(kOp, "in", args.in));
  RETURN_IF_ERROR(CheckAligned(kOp, "products", args.products));
  RETURN_IF_ERROR(CheckAligned(kOp, "out", args.out));
  if (args.out.rows == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(GroupedLaunch launch,
                   LaunchOf(kOp, *args.linear, args.routes, args.out.rows, args.decode));
  launch.accumulate = args.accumulate;
  if (args.decode) {
    SetMatrices(args.in, args.out, launch);
    return CudaStatus(LaunchGroupedFew(launch, stream.get()), "launching grouped_linear");
  }
  SetMatrices(args.in, args.products, launch);
  RETURN_IF_ERROR(CudaStatus(LaunchGroupedMany(launch, stream.get()), "launching grouped_linear"));
  SetMatrices(args.in, args.out, launch);
  return CudaStatus(
      LaunchAddProducts(args.products.data, args.products.row_stride, launch, stream.get()),
      "launching grouped_linear");
}

}  // namespace retroinfer::cuda
