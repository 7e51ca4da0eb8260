#include "gpu_worker/ops/model/cuda/fp8_linear.h"

#include <bit>
#include <span>

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/model/linear_check.h"

namespace retroinfer::cuda {

Fp8Linear::Fp8Linear(const WeightView& weight)
    : TiledLinear(weight.cols, weight.rows),
      padded_in_(DivideUp(weight.cols, kFp8ColumnAlignment) * kFp8ColumnAlignment) {}

absl::StatusOr<std::unique_ptr<CudaLinear>> Fp8Linear::Create(LinearContext& context,
                                                              CudaStream& stream,
                                                              const LinearWeights& weights) {
  auto linear = std::make_unique<Fp8Linear>(weights.weight);
  RETURN_IF_ERROR(linear->Pack(context, stream, weights, weights.scales));
  return linear;
}

absl::Status Fp8Linear::Pack(LinearContext& context, CudaStream& stream,
                             const LinearWeights& weights, const WeightScales& scales) {
  const bool is_code = weights.weight.form.is_code();
  scale_cols_ = is_code ? scales.num_cols(in_features()) : 1;
  scale_shift_ = is_code ? std::countr_zero(static_cast<uint64_t>(scales.rows_each)) : 0;
  const int64_t num_scales = is_code ? std::ssize(scales.values) : out_features();
  ASSIGN_OR_RETURN(weight_, Allocate(context, out_features() * padded_in_));
  ASSIGN_OR_RETURN(scales_, Allocate(context, num_scales * 4));
  ASSIGN_OR_RETURN(const DeviceBuffer has_nan, Allocate(context, sizeof(int)));
  int found = 0;
  const auto found_bytes = std::as_writable_bytes(std::span(&found, 1));
  CudaDevice& device = context.device();
  RETURN_IF_ERROR(device.Upload(stream, found_bytes, has_nan.bytes()));
  int* const flag = has_nan.as<int>().device_data();
  if (is_code) {
    RETURN_IF_ERROR(
        device.Upload(stream, std::as_bytes(std::span(scales.values)), scales_.bytes()));
    const auto* const codes = reinterpret_cast<const uint8_t*>(weights.weight.data);
    RETURN_IF_ERROR(
        CudaStatus(LaunchPackFp8(codes, weight(), flag, stream.get()), "copying a weight"));
  } else {
    RETURN_IF_ERROR(
        CudaStatus(LaunchQuantizeFp8(weights.weight.Numbers(), weight(), flag, stream.get()),
                   "rounding a weight"));
  }
  RETURN_IF_ERROR(device.Download(stream, has_nan.bytes(), found_bytes));
  RETURN_IF_ERROR(stream.Synchronize());
  if (found != 0) return NotFinite();
  // Parts are multiplied as they are.
  return weights.num_parts > 1 ? absl::OkStatus() : PrepareTile(context);
}

Fp8Weight Fp8Linear::weight() const {
  return {.codes = weight_.as<uint8_t>().device_data(),
          .rows = out_features(),
          .cols = in_features(),
          .padded_cols = padded_in_,
          .scales = scales_.as<float>().device_data(),
          .scale_cols = scale_cols_,
          .scale_shift = scale_shift_};
}

GroupedWeight Fp8Linear::Grouped() const {
  const Fp8Weight packed = weight();
  return {.form = packed.scale_cols > 1 ? GroupedForm::kFp8Blocks : GroupedForm::kFp8Features,
          .codes = packed.codes,
          .padded_cols = packed.padded_cols,
          .scales = packed.scales,
          .scale_cols = packed.scale_cols,
          .scale_shift = packed.scale_shift};
}

absl::Status Fp8Linear::LaunchFew(SkinnyGemmLaunch launch, CudaStream& stream) const {
  const Fp8Weight packed = weight();
  launch.weight = packed.codes;
  launch.padded_in = packed.padded_cols;
  launch.scales = packed.scales;
  launch.scale_cols = packed.scale_cols;
  launch.scale_shift = packed.scale_shift;
  return CudaStatus(LaunchSkinnyGemm(launch, stream.get()),
                    launch.gated ? "launching gated_linear" : "launching linear");
}

cudaError_t Fp8Linear::Unpack(int64_t first, int64_t count, void* out, cudaStream_t stream) const {
  return LaunchUnpackFp8(weight(), first, count, out, in_features(), stream);
}

}  // namespace retroinfer::cuda
