#include "gpu_worker/ops/model/cuda/number_linear.h"

#include "absl/memory/memory.h"
#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/model/cuda/convert_weight.h"
#include "gpu_worker/ops/model/cuda/fp8_linear.h"
#include "gpu_worker/ops/model/cuda/int4_linear.h"

namespace retroinfer::cuda {

NumberLinear::NumberLinear(const WeightView& weight)
    : CudaLinear(weight.cols, weight.rows),
      padded_in_(DivideUp(weight.cols, kWeightColumnAlignment) * kWeightColumnAlignment) {}

absl::StatusOr<std::unique_ptr<CudaLinear>> NumberLinear::Create(LinearContext& context,
                                                                 CudaStream& stream,
                                                                 const LinearWeights& weights) {
  auto linear = absl::WrapUnique(new NumberLinear(weights.weight));
  ASSIGN_OR_RETURN(linear->weight_,
                   Allocate(context, weights.weight.rows * linear->padded_in_ * 2));
  RETURN_IF_ERROR(CudaStatus(
      LaunchConvertWeight(weights.weight.Numbers(), linear->weight_.bytes().device_data(),
                          linear->padded_in_, nullptr, stream.get()),
      "copying a weight"));
  return linear;
}

absl::StatusOr<std::unique_ptr<CudaLinear>> NumberLinear::FromCodes(LinearContext& context,
                                                                    CudaStream& stream,
                                                                    const LinearWeights& weights) {
  auto linear = absl::WrapUnique(new NumberLinear(weights.weight));
  ASSIGN_OR_RETURN(linear->weight_,
                   Allocate(context, weights.weight.rows * linear->padded_in_ * 2));
  RETURN_IF_ERROR(weights.weight.form.id == WeightFormId::kInt4
                      ? linear->UnpackInt4(context, stream, weights)
                      : linear->UnpackFp8(context, stream, weights));
  return linear;
}

absl::Status NumberLinear::UnpackFp8(LinearContext& context, CudaStream& stream,
                                     const LinearWeights& weights) {
  Fp8Linear packed(weights.weight);
  RETURN_IF_ERROR(packed.Pack(context, stream, weights, weights.scales));
  RETURN_IF_ERROR(
      CudaStatus(LaunchUnpackFp8(packed.weight(), 0, out_features(), weight_.bytes().device_data(),
                                 padded_in_, stream.get()),
                 "unpacking a weight"));
  return stream.Synchronize();
}

absl::Status NumberLinear::UnpackInt4(LinearContext& context, CudaStream& stream,
                                      const LinearWeights& weights) {
  Int4Linear packed(weights.weight);
  RETURN_IF_ERROR(packed.Pack(context, stream, weights));
  RETURN_IF_ERROR(
      CudaStatus(LaunchUnpackInt4(packed.weight(), 0, out_features(), weight_.bytes().device_data(),
                                  padded_in_, stream.get()),
                 "unpacking a weight"));
  return stream.Synchronize();
}

absl::Status NumberLinear::LaunchFew(SkinnyGemmLaunch launch, CudaStream& stream) const {
  launch.weight = weight_.bytes().device_data();
  launch.padded_in = padded_in_;
  return CudaStatus(LaunchSkinnyGemm(launch, stream.get()),
                    launch.gated ? "launching gated_linear" : "launching linear");
}

GroupedWeight NumberLinear::Grouped() const {
  return {.form = GroupedForm::kBf16,
          .codes = weight_.bytes().device_data(),
          .padded_cols = padded_in_};
}

absl::StatusOr<bool> NumberLinear::Many(LinearContext& context, CudaStream& stream,
                                        const LinearArgs& args) const {
  const ProductShape shape = ShapeOf(args, out_features());
  ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t* algorithm, context.Algorithm(shape));
  if (algorithm == nullptr) return false;
  const Features all = {0, out_features(), weight_.bytes().device_data()};
  RETURN_IF_ERROR(RunCublas(context, shape, *algorithm, all, stream, args));
  return true;
}

}  // namespace retroinfer::cuda
