#include "gpu_worker/model/kept_weights.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gpu_worker/model/model_table.h"
#include "gpu_worker/model/stored_scales.h"

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

}  // namespace

absl::StatusOr<KeptWeights> KeptWeightsNamed(const std::string& name, const ModelConfig& config,
                                             const std::string& activations) {
  const bool quantized = config.quantization.has_value();
  const WeightForm* const stored = quantized ? &config.quantization->form.form : nullptr;
  if (stored != nullptr && stored->id != WeightFormId::kE4m3 &&
      (name == "fp8" || activations == "fp8")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fp8 of weights or activations needs numbers or fp8, the checkpoint's weights are ",
        std::string(stored->name), "; use --weights-dtype auto or bf16"));
  }
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
  if (name == "bf16") {
    return quantized || config.dtype == DType::kF32 ? KeptWeights::kNumbers
                                                    : KeptWeights::kAsStored;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--weights-dtype ", name, " is not known; auto, bf16 and fp8 are"));
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
  return RoundsNumbers(keep) ? &kFp8Weights : nullptr;
}

std::string WeightsDtype(const ModelConfig& config, KeptWeights keep) {
  if (const WeightForm* const form = KeptForm(config, keep)) return std::string(form->name);
  return keep == KeptWeights::kNumbers
             ? "bf16"
             : std::string(DTypeName(config.dtype.value_or(DType::kBf16)));
}

std::string WeightScalesFrom(const ModelConfig& config, KeptWeights keep) {
  std::string from;
  if (config.quantization.has_value()) {
    from = config.quantization->ToString();
  } else if (RoundsNumbers(keep)) {
    from = "fp8 (rounded while loading, a scale for each output feature)";
  }
  return keep == KeptWeights::kFp8Products ? from + ", activations of prompts in fp8" : from;
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
      sum.AddNumbers(numbers->second.bytes.size());
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
