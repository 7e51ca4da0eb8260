// A model of tests/golden/models with the logits that Hugging Face transformers computes from it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "build_paths.h"
#include "common/log/check.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/float4_matrices.h"
#include "gpu_worker/model/model_config.h"
#include "gpu_worker/model/padded_heads.h"
#include "gpu_worker/model/safetensors_file.h"
#include "gpu_worker/model/stacked_experts.h"

namespace retroinfer::test_support {

// Names of the golden models, sorted.
inline std::vector<std::string> GoldenModelNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(RETROINFER_SOURCE_DIR) +
                                                               "/tests/golden/models")) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline std::string GoldenModelFolder(const std::string& name) {
  return std::string(RETROINFER_SOURCE_DIR) + "/tests/golden/models/" + name;
}

struct GoldenModel {
  explicit GoldenModel(const std::string& name) {
    const std::string folder = GoldenModelFolder(name);
    auto loaded_config = LoadModelConfig(folder);
    auto loaded_checkpoint = Checkpoint::Open(folder);
    auto loaded_logits = SafetensorsFile::Open(folder + "/expected.safetensors");
    RI_CHECK(loaded_config.ok() && loaded_checkpoint.ok() && loaded_logits.ok());
    config = *std::move(loaded_config);
    checkpoint = *std::move(loaded_checkpoint);
    RI_CHECK(PadHeads(config, checkpoint).ok());
    RI_CHECK(UnstackExperts(config, checkpoint).ok());
    RI_CHECK(UnpackFloat4(config, checkpoint).ok());
    prefill_logits = Floats(loaded_logits->tensors().at("prefill_logits"));
    decode_logits = Floats(loaded_logits->tensors().at("decode_logits"));
    const auto expected = nlohmann::json::parse(std::ifstream(folder + "/expected.json"));
    prompt = expected["prompt"].get<std::vector<int32_t>>();
    forced = expected["forced"].get<std::vector<int32_t>>();
    prefill_positions = expected["prefill_positions"].get<std::vector<int64_t>>();
  }

  std::span<const float> PrefillLogits(size_t row) const { return Row(prefill_logits, row); }
  std::span<const float> DecodeLogits(size_t step) const { return Row(decode_logits, step); }

  ModelConfig config;
  Checkpoint checkpoint;
  std::vector<int32_t> prompt;
  std::vector<int32_t> forced;             // decoded one by one after the prompt
  std::vector<int64_t> prefill_positions;  // of the rows of prefill_logits
  std::vector<float> prefill_logits;       // [positions, vocab]
  std::vector<float> decode_logits;        // [forced, vocab]

 private:
  static std::vector<float> Floats(const HostTensor& tensor) {
    std::vector<float> values(tensor.stored.size() / sizeof(float));
    std::memcpy(values.data(), tensor.stored.data(), tensor.stored.size());
    return values;
  }
  std::span<const float> Row(const std::vector<float>& rows, size_t row) const {
    const auto vocab = static_cast<size_t>(config.vocab_size);
    return std::span(rows).subspan(row * vocab, vocab);
  }
};

// |got - want| / |want| of two vectors, by Euclidean norm; infinite if `got` holds a NaN.
inline double NormError(std::span<const float> got, std::span<const float> want) {
  RI_CHECK(got.size() == want.size());
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i])) return std::numeric_limits<double>::infinity();
    difference += std::pow(static_cast<double>(got[i]) - want[i], 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(difference / norm);
}

}  // namespace retroinfer::test_support
