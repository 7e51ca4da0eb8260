#include "gpu_worker/model/generation_config.h"

#include "absl/status/status.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/model_limits.h"

namespace retroinfer {
namespace {

constexpr double kMinPositive = 1e-6;

absl::Status ReadFloat(const common::JsonReader& json, const std::string& key, double min,
                       double max, std::optional<float>& out) {
  if (!json.Has(key)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const double value, json.Number(key, min, max));
  out = static_cast<float>(value);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GenerationConfig> ReadGenerationConfig(const common::JsonReader& json,
                                                      const ModelConfig& model) {
  GenerationConfig config;
  config.eos_token_ids = model.eos_token_ids;
  if (json.Has("eos_token_id")) {
    ASSIGN_OR_RETURN(const auto ids,
                     json.IntList("eos_token_id", 0, model.vocab_size - 1, kMaxEosTokens));
    config.eos_token_ids.assign(ids.begin(), ids.end());
  }
  if (json.Has("bos_token_id")) {
    ASSIGN_OR_RETURN(const int64_t id, json.Int("bos_token_id", 0, model.vocab_size - 1));
    config.bos_token_id = static_cast<int32_t>(id);
  }
  if (json.Has("do_sample")) {
    ASSIGN_OR_RETURN(config.do_sample, json.Bool("do_sample"));
  }
  RETURN_IF_ERROR(ReadFloat(json, "temperature", 0, 100, config.temperature));
  RETURN_IF_ERROR(ReadFloat(json, "top_p", kMinPositive, 1, config.top_p));
  RETURN_IF_ERROR(ReadFloat(json, "min_p", 0, 1, config.min_p));
  RETURN_IF_ERROR(
      ReadFloat(json, "repetition_penalty", kMinPositive, 10, config.repetition_penalty));
  ASSIGN_OR_RETURN(const int64_t top_k, json.IntOr("top_k", 0, -1, kMaxVocabSize));
  if (top_k > 0) config.top_k = static_cast<int32_t>(top_k);
  return config;
}

absl::StatusOr<GenerationConfig> LoadGenerationConfig(const std::string& folder,
                                                      const ModelConfig& model) {
  const absl::StatusOr<common::JsonReader> json = common::JsonReader::LoadObject(
      folder + "/generation_config.json", folder + "/generation_config.json");
  if (absl::IsNotFound(json.status())) {
    GenerationConfig config;
    config.eos_token_ids = model.eos_token_ids;
    return config;
  }
  RETURN_IF_ERROR(json.status());
  return ReadGenerationConfig(*json, model);
}

}  // namespace retroinfer
