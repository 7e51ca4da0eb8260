#include "gpu_worker/ops/model/cuda/cuda_linear.h"

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/model/cuda/convert_weight.h"
#include "gpu_worker/ops/model/cuda/some_rows_gemm.h"

namespace retroinfer::cuda {

absl::Status CudaLinear::AddBias(LinearContext& context, CudaStream& stream,
                                 const MatrixView& bias) {
  ASSIGN_OR_RETURN(bias_, Allocate(context, out_features_ * 2));
  ASSIGN_OR_RETURN(bias_f32_, Allocate(context, out_features_ * 4));
  return CudaStatus(LaunchConvertWeight(bias, bias_.bytes().device_data(), out_features_,
                                        bias_f32_.as<float>().device_data(), stream.get()),
                    "copying a bias");
}

SkinnyGemmLaunch CudaLinear::LaunchOf(const MatrixView& in, const MatrixView& out) const {
  return {.out_features = out_features_,
          .in_features = in_features_,
          .in = in.data,
          .in_stride = in.row_stride,
          .rows = in.rows,
          .out = out.data,
          .out_stride = out.row_stride};
}

absl::Status CudaLinear::Few(CudaStream& stream, const LinearArgs& args) const {
  SkinnyGemmLaunch launch = LaunchOf(args.in, args.out);
  launch.bias = bias_f32_.as<const float>().device_data();
  launch.out_is_f32 = args.out.dtype == DType::kF32;
  launch.accumulate = args.accumulate;
  return LaunchFewOrSome(launch, stream);
}

absl::Status CudaLinear::FewGated(CudaStream& stream, const GatedLinearArgs& args) const {
  SkinnyGemmLaunch launch = LaunchOf(args.in, args.out);
  launch.gated = true;
  launch.activation = args.activation;
  return LaunchFewOrSome(launch, stream);
}

absl::Status CudaLinear::LaunchFewOrSome(const SkinnyGemmLaunch& launch, CudaStream& stream) const {
  const GroupedWeight weight = Grouped();
  if (!TakesSomeRowsGemm(launch, weight)) return LaunchFew(launch, stream);
  return CudaStatus(LaunchSomeRowsGemm(launch, weight, stream.get()),
                    launch.gated ? "launching gated_linear" : "launching linear");
}

ProductShape CudaLinear::ShapeOf(const LinearArgs& args, int64_t features) const {
  return {.in_features = in_features_,
          .out_features = features,
          .in_stride = args.in.row_stride,
          .out_stride = args.out.row_stride,
          .out_dtype = args.out.dtype,
          .has_bias = has_bias(),
          .accumulate = args.accumulate};
}

const std::byte* CudaLinear::BiasOf(const ProductShape& shape, size_t skipped) const {
  if (!shape.has_bias) return nullptr;
  const DeviceBuffer& biases = shape.out_dtype == DType::kF32 ? bias_f32_ : bias_;
  return biases.bytes().device_data() + skipped;
}

absl::Status CudaLinear::RunCublas(LinearContext& context, const ProductShape& shape,
                                   const cublasLtMatmulAlgo_t& algorithm, const Features& features,
                                   CudaStream& stream, const LinearArgs& args) const {
  const size_t skipped = static_cast<size_t>(features.first) * DTypeBytes(shape.out_dtype);
  const ProductOperands operands = {.weight = features.weight,
                                    .in = args.in.data,
                                    .out = args.out.data + skipped,
                                    .bias = BiasOf(shape, skipped)};
  ASSIGN_OR_RETURN(const DeviceSpan<std::byte> workspace, context.Workspace(stream));
  return EnqueueProduct(context.lt(), context.handle(), shape, algorithm, args.in.rows, operands,
                        workspace, stream.get());
}

}  // namespace retroinfer::cuda
