// What config.json says about a model, checked and reduced to what the forward pass needs.
//
// Supported families: Llama 3, 3.1 and 3.2 (LlamaForCausalLM), Qwen2.5 (Qwen2ForCausalLM), Qwen3
// (Qwen3ForCausalLM), Mistral without a sliding window (MistralForCausalLM), Seed-OSS
// (SeedOssForCausalLM) and SmolLM3 (SmolLM3ForCausalLM), which are dense; and of experts Qwen3-MoE
// (Qwen3MoeForCausalLM) and Mixtral (MixtralForCausalLM). A setting that would change the result
// and is not implemented is refused: a model gives right answers or none. What a config.json leaves
// out is what transformers takes for that family.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/json/json_reader.h"
#include "common/kv/kv_geometry.h"
#include "gpu_worker/model/rope_config.h"
#include "gpu_worker/model/tensor_names.h"
#include "gpu_worker/model/weight_quantization.h"

namespace retroinfer {

// The values are part of the fingerprint: never renumber.
enum class ModelFamily : uint32_t {
  kLlama = 1,
  kQwen2 = 2,
  kQwen3 = 3,
  kMistral = 4,
  kSeedOss = 5,
  kSmolLm3 = 6,
  kQwen3Moe = 7,
  kMixtral = 8,
};

// Feed-forward networks of which each token takes a few.
struct ExpertsConfig {
  int64_t count = 0;      // of a layer; 0: its network is dense
  int64_t per_token = 0;  // 1 to `count`
  // Whether weights of the chosen ones sum to 1; otherwise those of all do.
  bool weights_sum_to_one = false;
};

struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  const TensorNames* names = &kLlamaNames;  // of the family; lives forever
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // of the feed-forward network, or of each expert
  ExpertsConfig experts;
  uint32_t num_layers = 0;
  uint32_t num_query_heads = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;  // 64 or 128
  // Newest tokens that a token sees in each layer, itself included; 0: all. Empty: all layers see
  // all tokens.
  std::vector<int32_t> layer_windows;
  int64_t vocab_size = 0;
  int64_t max_positions = 0;   // max_position_embeddings
  int64_t context_length = 0;  // tokens that the model is made for, RoPE scaling included
  float rms_norm_epsilon = 0;
  RopeConfig rope;
  bool tie_word_embeddings = false;  // the output projection is the embedding table
  bool qkv_bias = false;             // Qwen2, Seed-OSS
  bool qk_norm = false;              // Qwen3: RMSNorm of every query and key head before RoPE
  std::vector<uint32_t> layers_without_rope;  // SmolLM3
  // What the weights are meant to be computed in; none: in what they are stored.
  std::optional<DType> dtype;
  std::optional<WeightQuantization> quantization;  // of the checkpoint's matrices
  std::vector<int32_t> eos_token_ids;

  int64_t query_size() const { return int64_t{num_query_heads} * head_dim; }
  int64_t kv_size() const { return int64_t{num_kv_heads} * head_dim; }
  int32_t window_of(uint32_t layer) const {
    return layer_windows.empty() ? 0 : layer_windows[layer];
  }
  // Scores of attention are queries times keys, times this.
  float attention_scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }
  // Query heads that share a KV head.
  uint32_t group_size() const { return num_query_heads / num_kv_heads; }
  KvGeometry geometry(const KvFormat& kv_format) const {
    KvGeometry geometry{num_layers, num_kv_heads, head_dim, kv_format};
    for (const int32_t window : layer_windows) {
      if (window == 0) continue;
      --geometry.num_layers;
      ++geometry.num_window_layers;
      geometry.window_tokens = std::max(geometry.window_tokens, static_cast<uint32_t>(window));
    }
    return geometry;
  }
};

std::string_view ModelFamilyName(ModelFamily family);
// As in config.json: "LlamaForCausalLM".
std::string_view ModelArchitecture(ModelFamily family);

inline constexpr int64_t kMaxVocabSize = int64_t{1} << 22;
inline constexpr int64_t kMaxModelPositions = int64_t{1} << 27;

// Tokens that a model is made for, by its RoPE and max_positions.
int64_t ContextLengthOf(const ModelConfig& config);

// Returns: INVALID_ARGUMENT for missing, mistyped or impossible values, UNIMPLEMENTED for what is
// valid but not supported; both with file, key and what is accepted.
absl::StatusOr<ModelConfig> ReadModelConfig(const common::JsonReader& config,
                                            const common::JsonReader* hf_quant_config = nullptr);

// Reads `folder`/config.json, and hf_quant_config.json if it is there.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& folder);

}  // namespace retroinfer
