// generation_config.json: where generation ends and how a model's makers would sample from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/json/json_reader.h"
#include "gpu_worker/model/model_config.h"

namespace retroinfer {

// Values that the file does not give are absent.
struct GenerationConfig {
  std::vector<int32_t> eos_token_ids;  // generation ends at any of them; may be empty
  std::optional<int32_t> bos_token_id;
  std::optional<bool> do_sample;
  std::optional<float> temperature;         // [0, 100], as in requests
  std::optional<float> top_p;               // (0, 1]
  std::optional<int32_t> top_k;             // >= 1; absent if the file switches it off with 0 or -1
  std::optional<float> min_p;               // [0, 1]
  std::optional<float> repetition_penalty;  // (0, 10], as in requests
};

// Returns INVALID_ARGUMENT for mistyped values, token ids outside the vocabulary, and sampling
// values outside their range. Without an eos_token_id the one of config.json holds.
absl::StatusOr<GenerationConfig> ReadGenerationConfig(const common::JsonReader& json,
                                                      const ModelConfig& model);

// Reads `folder`/generation_config.json. A folder without one is fine.
absl::StatusOr<GenerationConfig> LoadGenerationConfig(const std::string& folder,
                                                      const ModelConfig& model);

}  // namespace retroinfer
