#include "gpu_worker/model/gpt_oss_config.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/layer_windows.h"
#include "gpu_worker/model/weight_quantization.h"

namespace retroinfer {
namespace {

absl::Status Unsupported(const common::JsonReader& config, const char* key,
                         const std::string& problem) {
  return absl::UnimplementedError(absl::StrCat(config.place(), ": key \"", key, "\": ", problem));
}

absl::Status RequireNumber(const common::JsonReader& config, const char* key, double wanted) {
  ASSIGN_OR_RETURN(const double value, config.NumberOr(key, wanted, -1e9, 1e9));
  if (value == wanted) return absl::OkStatus();
  return Unsupported(config, key, absl::StrCat("is ", value, "; ", wanted, " is supported"));
}

}  // namespace

absl::Status ReadGptOss(const common::JsonReader& config, ModelConfig& model) {
  RETURN_IF_ERROR(RequireMxfp4(config));
  RETURN_IF_ERROR(RequireNumber(config, "swiglu_limit", kClampedSwigluLimit));
  RETURN_IF_ERROR(RequireNumber(config, "swiglu_alpha", 1.702));
  ASSIGN_OR_RETURN(const bool has_biases, config.BoolOr("attention_bias", true));
  if (!has_biases) {
    return Unsupported(config, "attention_bias", "a gpt-oss without biases is not supported");
  }
  if (!config.Has("rope_scaling") && !config.Has("rope_parameters")) {
    return config.Error("rope_scaling", "is missing");  // its default would be YaRN
  }
  RETURN_IF_ERROR(ReadLayerWindows(config, {.tokens = 128, .full_each = 2}, model));
  model.output_bias = true;
  model.expert_biases = true;
  model.sinks = true;
  model.activation = GatedActivation::kClampedSwiglu;
  return absl::OkStatus();
}

}  // namespace retroinfer
