#include "gpu_worker/ops/model/cuda/int4_linear.h"

#include <span>

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/model/cuda/int4_layout.h"
#include "gpu_worker/ops/model/cuda/skinny_gemm_int4.h"
#include "gpu_worker/ops/model/linear_check.h"

namespace retroinfer::cuda {
namespace {

// The words of all groups, as int4_layout.h has them.
std::vector<uint32_t> GroupWords(const LinearWeights& weights, int64_t group_cols) {
  const int64_t rows = weights.weight.rows;
  const int64_t cols = weights.weight.cols;
  const WeightScales& scales = weights.scales;
  const int64_t num_groups = Int4PaddedCols(cols) / group_cols;
  std::vector<uint32_t> words(static_cast<size_t>(Int4GroupBytes(rows, cols, group_cols) / 4));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; col += group_cols) {
      const size_t index = scales.IndexOf(row, col, cols);
      const int zero = scales.zeros.empty() ? kInt4Middle : static_cast<int>(scales.zeros[index]);
      words[static_cast<size_t>(Int4GroupAt(row, col / group_cols, num_groups))] =
          Int4GroupWord(scales.values[index], zero);
    }
  }
  return words;
}

}  // namespace

Int4Linear::Int4Linear(const WeightView& weight)
    : TiledLinear(weight.cols, weight.rows),
      group_cols_(weight.form.is_code() ? Int4GroupCols(weight.form) : kInt4RoundedGroup) {}

absl::StatusOr<std::unique_ptr<CudaLinear>> Int4Linear::Create(LinearContext& context,
                                                               CudaStream& stream,
                                                               const LinearWeights& weights) {
  auto linear = std::make_unique<Int4Linear>(weights.weight);
  RETURN_IF_ERROR(linear->Pack(context, stream, weights));
  // Parts are multiplied as they are.
  if (weights.num_parts == 1) RETURN_IF_ERROR(linear->PrepareTile(context));
  return linear;
}

absl::Status Int4Linear::Pack(LinearContext& context, CudaStream& stream,
                              const LinearWeights& weights) {
  ASSIGN_OR_RETURN(codes_, Allocate(context, Int4CodeBytes(out_features(), in_features())));
  ASSIGN_OR_RETURN(groups_,
                   Allocate(context, Int4GroupBytes(out_features(), in_features(), group_cols_)));
  return weights.weight.form.is_code() ? PackCodes(context, stream, weights)
                                       : RoundNumbers(context, stream, weights);
}

absl::Status Int4Linear::PackCodes(LinearContext& context, CudaStream& stream,
                                   const LinearWeights& weights) {
  CudaDevice& device = context.device();
  const std::vector<uint32_t> words = GroupWords(weights, group_cols_);
  RETURN_IF_ERROR(device.Upload(stream, std::as_bytes(std::span(words)), groups_.bytes()));
  const std::span columns = std::as_bytes(std::span(weights.scales.columns));
  if (!columns.empty()) {
    ASSIGN_OR_RETURN(columns_, Allocate(context, std::ssize(columns)));
    RETURN_IF_ERROR(device.Upload(stream, columns, columns_.bytes()));
  }
  const auto* const codes = reinterpret_cast<const uint32_t*>(weights.weight.data);
  RETURN_IF_ERROR(CudaStatus(LaunchPackInt4(codes, weight(), stream.get()), "copying a weight"));
  return stream.Synchronize();
}

absl::Status Int4Linear::RoundNumbers(LinearContext& context, CudaStream& stream,
                                      const LinearWeights& weights) {
  CudaDevice& device = context.device();
  ASSIGN_OR_RETURN(const DeviceBuffer not_finite, Allocate(context, sizeof(int)));
  int found = 0;
  const auto found_bytes = std::as_writable_bytes(std::span(&found, 1));
  RETURN_IF_ERROR(device.Upload(stream, found_bytes, not_finite.bytes()));
  RETURN_IF_ERROR(CudaStatus(LaunchQuantizeInt4(weights.weight.Numbers(), weight(),
                                                not_finite.as<int>().device_data(), stream.get()),
                             "rounding a weight"));
  RETURN_IF_ERROR(device.Download(stream, not_finite.bytes(), found_bytes));
  RETURN_IF_ERROR(stream.Synchronize());
  return found != 0 ? NotFinite() : absl::OkStatus();
}

Int4Weight Int4Linear::weight() const {
  const bool permuted = columns_.size_bytes() > 0;
  return {.codes = codes_.as<uint32_t>().device_data(),
          .groups = groups_.as<uint32_t>().device_data(),
          .columns = permuted ? columns_.as<const int32_t>().device_data() : nullptr,
          .rows = out_features(),
          .cols = in_features(),
          .padded_cols = Int4PaddedCols(in_features()),
          .group_cols = group_cols_};
}

GroupedWeight Int4Linear::Grouped() const {
  const Int4Weight packed = weight();
  if (packed.columns != nullptr) return {};
  return {.form = packed.group_cols == kInt4StepCols ? GroupedForm::kInt4Steps
                                                     : GroupedForm::kInt4Words,
          .codes = packed.codes,
          .padded_cols = packed.padded_cols,
          .groups = packed.groups,
          .group_cols = packed.group_cols};
}

absl::Status Int4Linear::LaunchFew(SkinnyGemmLaunch launch, CudaStream& stream) const {
  return CudaStatus(LaunchSkinnyGemmInt4(launch, weight(), stream.get()),
                    launch.gated ? "launching gated_linear" : "launching linear");
}

cudaError_t Int4Linear::Unpack(int64_t first, int64_t count, void* out, cudaStream_t stream) const {
  return LaunchUnpackInt4(weight(), first, count, out, in_features(), stream);
}

}  // namespace retroinfer::cuda
