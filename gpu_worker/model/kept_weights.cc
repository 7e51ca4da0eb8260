#include "gpu_worker/model/kept_weights.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/model_table.h"
#include "gpu_worker/model/stored_scales.h"
#include "gpu_worker/ops/model/int4.h"

namespace retroinfer {
namespace {

// Adds up what a model's tensors take.
class Sum {
 public:
  explicit Sum(const BackendNeeds& needs) : needs_(needs) {}

  void AddNumbers(size_t bytes) { bytes_ += bytes; }
  void AddCodes(const WeightForm& form, int64_t in, int64_t out) {
    bytes_ += needs_.weight_bytes(form, in, out) + form.ScaleBytes(out, in);
    scratch_ = std::max(scratch_, needs_.weight_scratch(form, in, out));
  }
  size_t bytes() const { return bytes_ + scratch_; }

 private:
  const BackendNeeds& needs_;
  size_t bytes_ = 0;
  size_t scratch_ = 0;
};

// What numbers become that are rounded while they are loaded; null: they are not.
const WeightForm* RoundedForm(KeptWeights keep) {
  if (!RoundsNumbers(keep)) return nullptr;
  return keep == KeptWeights::kInt4 ? &kInt4Rounded : &kFp8Weights;
}

// Whether the codes of a checkpoint, if it has some, may be asked for as fp8 or int4: as what they
// are.
absl::Status CheckCodesAre(const ModelConfig& config, const WeightForm& wanted) {
  if (!config.quantization.has_value()) return absl::OkStatus();
  const WeightForm& stored = config.quantization->form.form;
  if (stored.id == wanted.id) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(wanted.name), " needs a checkpoint of numbers or of ",
                   std::string(wanted.name), ", this one's weights are ", std::string(stored.name),
                   ": rounding them twice would lose more; use --weights-dtype auto or bf16"));
}

}  // namespace

absl::StatusOr<KeptWeights> KeptWeightsNamed(const std::string& name, const ModelConfig& config,
                                             const std::string& activations) {
  const bool quantized = config.quantization.has_value();
  if (name == "fp8" || activations == "fp8") {
    RETURN_IF_ERROR(CheckCodesAre(config, kFp8Weights));
  }
  if (name == "int4") RETURN_IF_ERROR(CheckCodesAre(config, kInt4Rounded));
  if (activations == "fp8") {
    if (name == "fp8" || (name == "auto" && quantized)) return KeptWeights::kFp8Products;
    return absl::InvalidArgumentError(absl::StrCat(
        "--activations-dtype fp8 needs weights in fp8, --weights-dtype is ", name,
        quantized ? "" : " and the checkpoint's are not", "; use --weights-dtype fp8"));
  }
  if (activations != "bf16") {
    return absl::InvalidArgumentError(
        absl::StrCat("--activations-dtype ", activations, " is not known; bf16 and fp8 are"));
  }
  if (name == "auto") return KeptWeights::kAsStored;
  if (name == "fp8") return quantized ? KeptWeights::kAsStored : KeptWeights::kFp8;
  if (name == "int4") return quantized ? KeptWeights::kAsStored : KeptWeights::kInt4;
  if (name == "bf16") {
    return quantized || config.dtype == DType::kF32 ? KeptWeights::kNumbers
                                                    : KeptWeights::kAsStored;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--weights-dtype ", name, " is not known; auto, bf16, fp8 and int4 are"));
}

void TakeStoredType(const Checkpoint& checkpoint, ModelConfig& config) {
  const ModelTable table(config);
  const auto found = checkpoint.tensors().find(table.Get(TensorRole::kEmbedding).stored);
  if (config.dtype.has_value() || found == checkpoint.tensors().end()) return;
  switch (found->second.type) {
    case WeightType::kF32:
      config.dtype = DType::kF32;
      break;
    case WeightType::kF16:
      config.dtype = DType::kF16;
      break;
    case WeightType::kBf16:
    case WeightType::kF8E4M3:
    case WeightType::kI32:
    case WeightType::kI64:
    case WeightType::kU8:
      config.dtype = DType::kBf16;
      break;
  }
}

absl::Status CheckWeightForm(const ModelConfig& config, const BackendNeeds& needs) {
  if (!config.quantization.has_value() || needs.has_weight_form(config.quantization->form.form)) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      absl::StrCat("the checkpoint's weights are ", config.quantization->ToString(),
                   ", which this device does not multiply; numbers of 16 and 32 bits and fp8 are "
                   "multiplied everywhere"));
}

const WeightForm* KeptForm(const ModelConfig& config, KeptWeights keep) {
  if (config.quantization.has_value()) {
    return keep == KeptWeights::kNumbers ? nullptr : &config.quantization->form.form;
  }
  return RoundedForm(keep);
}

std::string WeightsDtype(const ModelConfig& config, KeptWeights keep) {
  if (const WeightForm* const form = KeptForm(config, keep)) return std::string(form->name);
  return keep == KeptWeights::kNumbers || config.float4.has_value()
             ? "bf16"
             : std::string(DTypeName(config.dtype.value_or(DType::kBf16)));
}

std::string WeightScalesFrom(const ModelConfig& config, KeptWeights keep) {
  std::string from;
  if (config.quantization.has_value()) {
    from = config.quantization->ToString();
  } else if (keep == KeptWeights::kInt4) {
    from = "int4 (rounded while loading, a scale and a zero for each 128 input features)";
  } else if (RoundsNumbers(keep)) {
    from = "fp8 (rounded while loading, a scale for each output feature)";
  }
  if (config.float4.has_value()) {
    from = absl::StrCat(config.float4->ToString(), from.empty() ? "" : ", then ", from);
  }
  return keep == KeptWeights::kFp8Products ? from + ", activations of prompts in fp8" : from;
}

std::string WeightsInMemory(const ModelConfig& config, KeptWeights keep,
                            const BackendNeeds& needs) {
  const WeightForm* const form = KeptForm(config, keep);
  if (form == nullptr && config.float4.has_value()) return std::string(kFloat4Note);
  if (form != nullptr && needs.weight_bytes(*form, 128, 128) == form->Bytes(128, 128)) {
    return absl::StrCat("they stay ", form->bits, " bits in memory");
  }
  return "in memory they become numbers";
}

bool RoundsLayers(const ModelConfig& config, KeptWeights keep) {
  return RoundsNumbers(keep) && !config.quantization.has_value();
}

size_t KeptWeightBytes(const ModelConfig& config, const Checkpoint& checkpoint, KeptWeights keep,
                       const BackendNeeds& needs) {
  const ModelTable table(config);
  Sum sum(needs);
  for (const auto& [name, stored] : table.stored()) {
    const bool coded =
        stored.may_be_coded() && FindCodes(config.quantization, checkpoint, name).has_value();
    const bool stays_coded = coded ? keep != KeptWeights::kNumbers
                                   : stored.may_be_rounded() && RoundsLayers(config, keep);
    const auto numbers = checkpoint.tensors().find(name);
    if (stays_coded) {
      sum.AddCodes(*KeptForm(config, keep), stored.shape[1], stored.shape[0]);
    } else if (coded) {
      sum.AddNumbers(kBf16Weights.Bytes(stored.shape[0], stored.shape[1]));
    } else if (numbers != checkpoint.tensors().end()) {
      sum.AddNumbers(numbers->second.num_bytes());
    }
  }
  return sum.bytes();
}

size_t KeptRandomWeightBytes(const ModelConfig& config, KeptWeights keep,
                             const BackendNeeds& needs) {
  const ModelTable table(config);
  Sum sum(needs);
  for (const auto& [name, stored] : table.stored()) {
    const WeightForm* const form = stored.may_be_rounded() ? KeptForm(config, keep) : nullptr;
    if (form != nullptr) {
      sum.AddCodes(*form, stored.shape[1], stored.shape[0]);
      continue;
    }
    size_t bytes = WeightTypeBytes(WeightType::kBf16);
    for (const int64_t extent : stored.shape) bytes *= static_cast<size_t>(extent);
    sum.AddNumbers(bytes);
  }
  return sum.bytes();
}

}  // namespace retroinfer
