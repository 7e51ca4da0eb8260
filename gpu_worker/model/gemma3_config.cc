#include "gpu_worker/model/gemma3_config.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/layer_windows.h"
#include "gpu_worker/model/small_floats.h"

namespace retroinfer {
namespace {

absl::Status Unsupported(const common::JsonReader& config, const char* key,
                         const std::string& problem) {
  return absl::UnimplementedError(absl::StrCat(config.place(), ": key \"", key, "\": ", problem));
}

absl::Status RefuseFeatures(const common::JsonReader& config) {
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (config.Has(key)) {
      return Unsupported(config, key, "soft caps (Gemma 2) are not supported; null is");
    }
  }
  ASSIGN_OR_RETURN(const bool both_sides, config.BoolOr("use_bidirectional_attention", false));
  if (both_sides) {
    return Unsupported(config, "use_bidirectional_attention",
                       "attention to later tokens is not supported");
  }
  if (!config.Has("hidden_activation")) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string activation, config.String("hidden_activation"));
  if (activation == "gelu_pytorch_tanh") return absl::OkStatus();
  return Unsupported(
      config, "hidden_activation",
      absl::StrCat(activation.substr(0, 40), " is not supported; gelu_pytorch_tanh is"));
}

// As transformers multiplies: in the type that the model is computed in.
float EmbeddingScale(const ModelConfig& model) {
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(model.hidden_size)));
  const DType dtype = model.dtype.value_or(DType::kBf16);
  if (dtype == DType::kBf16) return FromBf16(ToBf16(root));
  if (dtype == DType::kF32) return root;
  // f16 has 11 digits of a number between 1 and 256.
  const float unit = std::ldexp(1.0f, std::ilogb(root) - 10);
  return std::nearbyint(root / unit) * unit;
}

}  // namespace

absl::Status ReadGemma3(const common::JsonReader& config, ModelConfig& model) {
  RETURN_IF_ERROR(RefuseFeatures(config));
  RETURN_IF_ERROR(ReadLayerWindows(config, {.tokens = 4096, .full_each = 6}, model));
  ASSIGN_OR_RETURN(
      const LayerTypeRopes ropes,
      ReadLayerTypeRopes(config, model.max_positions, {.full = {.theta = 1e6}, .sliding = {}}));
  model.rope = ropes.full;
  if (!model.layer_windows.empty()) model.window_rope = ropes.sliding;
  ASSIGN_OR_RETURN(const double divisor, config.NumberOr("query_pre_attn_scalar", 256, 1e-3, 1e6));
  model.score_scale = 1 / std::sqrt(divisor);
  model.norm_offset = 1;
  model.post_norms = true;
  model.activation = GatedActivation::kGeluTanh;
  model.embedding_multiplier = EmbeddingScale(model);
  return absl::OkStatus();
}

}  // namespace retroinfer
