#include "gpu_worker/ops/model/cuda/linear.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/model/cuda/cuda_linear.h"
#include "gpu_worker/ops/model/cuda/fp8_linear.h"
#include "gpu_worker/ops/model/cuda/fp8_product_linear.h"
#include "gpu_worker/ops/model/cuda/int4_linear.h"
#include "gpu_worker/ops/model/cuda/number_linear.h"
#include "gpu_worker/ops/model/cuda/weight_forms.h"
#include "gpu_worker/ops/model/linear_check.h"

namespace retroinfer::cuda {
namespace {

constexpr int kHopper = 90;

absl::Status CheckIsSupported(const LinearContext& context, const LinearWeights& weights) {
  const WeightForm& form = weights.weight.form;
  if (!HasWeightForm(form)) {
    return absl::UnimplementedError(absl::StrCat(
        "weights in ", std::string(form.name),
        " are not multiplied on a GPU; fp8, int4 with groups of 32, 64, 128 or all input "
        "features, and numbers of 16 and 32 bits are"));
  }
  const int capability = context.device().compute_capability();
  if (weights.keep == KeptWeights::kFp8Products && capability != kHopper) {
    return absl::InvalidArgumentError(
        absl::StrCat("activations in fp8 need a GPU of compute capability 9.0, this one has ",
                     capability / 10, ".", capability % 10, "; use --activations-dtype bf16"));
  }
  return absl::OkStatus();
}

// The class that keeps the weight as asked.
absl::StatusOr<std::unique_ptr<CudaLinear>> Prepare(LinearContext& context, CudaStream& stream,
                                                    const LinearWeights& weights) {
  const bool is_code = weights.weight.form.is_code();
  const bool stays_code = is_code && weights.keep == KeptWeights::kAsStored;
  if (!RoundsNumbers(weights.keep) && !stays_code) {
    return is_code ? NumberLinear::FromCodes(context, stream, weights)
                   : NumberLinear::Create(context, stream, weights);
  }
  const bool is_int4 =
      is_code ? weights.weight.form.id == WeightFormId::kInt4 : weights.keep == KeptWeights::kInt4;
  if (is_int4) return Int4Linear::Create(context, stream, weights);
  return Fp8ProductLinear::Takes(weights) ? Fp8ProductLinear::Create(context, stream, weights)
                                          : Fp8Linear::Create(context, stream, weights);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreparedLinear>> PrepareLinear(LinearContext& context,
                                                              const LinearWeights& weights) {
  RETURN_IF_ERROR(CheckLinearWeights(weights));
  RETURN_IF_ERROR(CheckIsSupported(context, weights));
  ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> stream, CudaStream::Create(StreamKind::kBackground));
  ASSIGN_OR_RETURN(std::unique_ptr<CudaLinear> linear, Prepare(context, *stream, weights));
  linear->set_num_parts(weights.num_parts);
  if (weights.bias.has_value()) {
    RETURN_IF_ERROR(linear->AddBias(context, *stream, weights.bias->Numbers()));
  }
  RETURN_IF_ERROR(stream->Synchronize());
  return linear;
}

absl::Status Linear(LinearContext& context, CudaStream& stream, const LinearArgs& args) {
  RETURN_IF_ERROR(CheckLinear(args, DType::kBf16));
  RETURN_IF_ERROR(CheckArg(args.out.dtype != DType::kF16, "linear", "out must be bf16 or f32"));
  if (args.in.rows == 0) return absl::OkStatus();
  const auto& linear = static_cast<const CudaLinear&>(*args.linear);
  const bool aligned = HasAlignedRows(args.in) && HasAlignedRows(args.out);
  if (args.decode || !aligned) return linear.Few(stream, args);
  ASSIGN_OR_RETURN(const bool done, linear.Many(context, stream, args));
  return done ? absl::OkStatus() : linear.Few(stream, args);
}

bool FusesGatedLinear(const GatedLinearArgs& args) {
  const auto& linear = static_cast<const CudaLinear&>(*args.linear);
  return args.decode && !linear.has_bias() && HasAlignedRows(args.in);
}

absl::Status GatedLinear(CudaStream& stream, const GatedLinearArgs& args) {
  if (args.in.rows == 0) return absl::OkStatus();
  return static_cast<const CudaLinear&>(*args.linear).FewGated(stream, args);
}

}  // namespace retroinfer::cuda
