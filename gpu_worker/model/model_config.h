// What config.json says about a model, checked and reduced to what the forward pass needs.
//
// Supported families: those of model_families.h. A setting that would change the result and is not
// implemented is refused: a model gives right answers or none. What a config.json leaves out is
// what transformers takes for that family.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/json/json_reader.h"
#include "common/kv/kv_geometry.h"
#include "gpu_worker/model/model_families.h"
#include "gpu_worker/model/model_shard.h"
#include "gpu_worker/model/rope_config.h"
#include "gpu_worker/model/tensor_names.h"
#include "gpu_worker/model/weight_quantization.h"
#include "gpu_worker/ops/model/silu_mul.h"

namespace retroinfer {

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
  uint32_t head_dim = 0;  // one of kHeadDims
  // What the checkpoint's heads have, where they are padded with zeros to head_dim
  // (padded_heads.h); 0: the same.
  uint32_t stored_head_dim = 0;
  std::optional<double> score_scale;  // of attention; none: 1 / sqrt(numbers of a head)
  // Granite: of embeddings, of what a layer's halves add, and what logits are divided by.
  double embedding_multiplier = 1;
  double residual_multiplier = 1;
  double logits_divisor = 1;
  // Newest tokens that a token sees in each layer, itself included; 0: all. Empty: all layers see
  // all tokens.
  std::vector<int32_t> layer_windows;
  int64_t vocab_size = 0;
  int64_t max_positions = 0;   // max_position_embeddings
  int64_t context_length = 0;  // tokens that the model is made for, RoPE scaling included
  float rms_norm_epsilon = 0;
  float norm_offset = 0;  // added to the weights of norms: Gemma stores them less 1
  RopeConfig rope;
  std::optional<RopeConfig> window_rope;  // of window layers; none: theirs is `rope`
  GatedActivation activation = GatedActivation::kSilu;
  bool tie_word_embeddings = false;  // the output projection is the embedding table
  bool output_bias = false;          // of what attention adds: gpt-oss
  bool expert_biases = false;        // of the router and the experts: gpt-oss
  bool sinks = false;                // query heads have a logit without a value: gpt-oss
  bool qkv_bias = false;             // Qwen2, Seed-OSS
  bool qk_norm = false;     // RMSNorm of every query and key head before RoPE: Qwen3, Gemma
  bool post_norms = false;  // norms of what attention and feed-forward networks add, too: Gemma
  std::vector<uint32_t> layers_without_rope;  // SmolLM3
  // What the weights are meant to be computed in; none: in what they are stored.
  std::optional<DType> dtype;
  std::optional<WeightQuantization> quantization;  // of the checkpoint's matrices
  // In which floats of 4 bits a checkpoint stores matrices, which become numbers when its weights
  // are opened (float4_matrices.h); `quantization` is none then.
  std::optional<Float4Form> float4;
  bool has_kv_scheme = false;  // the checkpoint has scales for an 8-bit KV cache, without effect
  std::vector<int32_t> eos_token_ids;
  // What a rank has of the model (shard_config.h): heads and features above are its own then; none:
  // all of it.
  std::optional<ModelShard> shard;

  // Tokens whose logits the output projection gives.
  int64_t num_outputs() const { return shard.has_value() ? shard->outputs.count : vocab_size; }
  int64_t query_size() const { return int64_t{num_query_heads} * head_dim; }
  int64_t kv_size() const { return int64_t{num_kv_heads} * head_dim; }
  int32_t window_of(uint32_t layer) const {
    return layer_windows.empty() ? 0 : layer_windows[layer];
  }
  // Numbers of a head as the checkpoint has it, and those of them that RoPE turns.
  uint32_t own_head_dim() const { return stored_head_dim == 0 ? head_dim : stored_head_dim; }
  uint32_t rotated_dims() const { return rope.RotatedDims(own_head_dim()); }
  // Scores of attention are queries times keys, times this.
  float attention_scale() const {
    return score_scale.has_value() ? static_cast<float>(*score_scale)
                                   : 1.0f / std::sqrt(static_cast<float>(own_head_dim()));
  }
  // What layers add to the hidden state is multiplied by residual_multiplier; here the hidden state
  // is divided by that instead, and the norms, which are blind to a factor, get an epsilon that is
  // divided by its square.
  float embedding_scale() const {
    return static_cast<float>(embedding_multiplier / residual_multiplier);
  }
  float hidden_epsilon() const {
    return static_cast<float>(double{rms_norm_epsilon} /
                              (residual_multiplier * residual_multiplier));
  }
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
