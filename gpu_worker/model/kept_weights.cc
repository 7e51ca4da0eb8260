#include "gpu_worker/model/kept_weights.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/model/model_weights.h"

namespace retroinfer {
namespace {

constexpr char kEmbeddingName[] = "model.embed_tokens.weight";
constexpr size_t kScaleBytes = sizeof(float);

bool IsFp8(const ModelConfig& config, KeptWeights keep) {
  return RoundsNumbers(keep) || (keep == KeptWeights::kAsStored && config.quantization.has_value());
}

// Adds up what a model's tensors take.
class Sum {
 public:
  explicit Sum(const BackendNeeds& needs) : needs_(needs) {}

  void AddNumbers(size_t bytes) { bytes_ += bytes; }
  void AddFp8(int64_t in, int64_t out) {
    bytes_ += needs_.fp8_weight(in, out) + static_cast<size_t>(out) * kScaleBytes;
    scratch_ = std::max(scratch_, needs_.fp8_scratch(in, out));
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
  const auto found = checkpoint.tensors().find(kEmbeddingName);
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
      config.dtype = DType::kBf16;
      break;
  }
}

std::string WeightsDtype(const ModelConfig& config, KeptWeights keep) {
  if (IsFp8(config, keep)) return "fp8";
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

bool IsLayerMatrix(const std::string& name) { return absl::EndsWith(name, "_proj.weight"); }

size_t KeptWeightBytes(const ModelConfig& config, const Checkpoint& checkpoint, KeptWeights keep,
                       const BackendNeeds& needs) {
  Sum sum(needs);
  for (const auto& [name, shape] : ExpectedTensors(config)) {
    const auto found = checkpoint.tensors().find(name);
    if (found == checkpoint.tensors().end()) continue;
    const HostTensor& tensor = found->second;
    const bool matrix = IsLayerMatrix(name) && shape.size() == 2;
    const bool coded = HasScales(tensor.type);
    const bool fp8 = coded ? keep != KeptWeights::kNumbers : matrix && RoundsLayers(config, keep);
    if (fp8) {
      sum.AddFp8(shape[1], shape[0]);
    } else {
      sum.AddNumbers(tensor.num_bytes() * (coded ? 2 : 1));
    }
  }
  return sum.bytes();
}

size_t KeptRandomWeightBytes(const ModelConfig& config, KeptWeights keep,
                             const BackendNeeds& needs) {
  Sum sum(needs);
  for (const auto& [name, shape] : ExpectedTensors(config)) {
    if (IsLayerMatrix(name) && IsFp8(config, keep)) {
      sum.AddFp8(shape[1], shape[0]);
      continue;
    }
    size_t bytes = WeightTypeBytes(WeightType::kBf16);
    for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
    sum.AddNumbers(bytes);
  }
  return sum.bytes();
}

}  // namespace retroinfer
