#include "gpu_worker/model/gguf/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/gguf/gguf_names.h"
#include "gpu_worker/model/gguf/gguf_rope.h"
#include "gpu_worker/model/model_limits.h"

namespace retroinfer {
namespace {

constexpr char kArchitecture[] = "general.architecture";
constexpr char kEmbedding[] = "token_embd.weight";
constexpr char kOutput[] = "output.weight";
constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxTokens = static_cast<size_t>(kMaxVocabSize);
constexpr int64_t kControlToken = 3;

struct Architecture {
  std::string_view name;
  ModelFamily family;
};
constexpr Architecture kArchitectures[] = {
    {"llama", ModelFamily::kLlama},
    {"qwen2", ModelFamily::kQwen2},
    {"qwen3", ModelFamily::kQwen3},
    {"qwen3moe", ModelFamily::kQwen3Moe},
};

// Settings of one architecture or another that change the result. 0 changes nothing, and scales of
// 1 do not.
struct Refused {
  const char* key;  // behind the architecture
  double without_effect;
  const char* what;
};
constexpr Refused kRefused[] = {
    {"expert_shared_count", 0, "experts that all tokens share are not supported"},
    {"expert_gating_func", 1,
     "experts are weighed by a softmax (1); other functions are not supported"},
    {"expert_weights_scale", 1, "scaled weights of experts are not supported"},
    {"leading_dense_block_count", 0, "dense layers beside those of experts are not supported"},
    {"attention.clamp_kqv", 0, "clamped queries, keys and values are not supported"},
    {"attention.max_alibi_bias", 0, "ALiBi is not supported; RoPE is"},
    {"attention.scale", 0, "another scale of attention is not supported"},
    {"attention.q_lora_rank", 0, "latent attention is not supported"},
    {"attention.kv_lora_rank", 0, "latent attention is not supported"},
    {"attn_logit_softcapping", 0, "capped logits are not supported"},
    {"final_logit_softcapping", 0, "capped logits are not supported"},
    {"embedding_scale", 1, "scaled embeddings are not supported"},
    {"logit_scale", 1, "scaled logits are not supported"},
    {"residual_scale", 1, "scaled residuals are not supported"},
    {"pooling_type", 0, "models that make embeddings of texts are not supported"},
};

// Reads the keys of one architecture.
class ConfigReader {
 public:
  explicit ConfigReader(const GgufFiles& files) : files_(files), metadata_(files.metadata()) {}

  absl::StatusOr<ModelConfig> Read();

 private:
  std::string Key(std::string_view name) const { return absl::StrCat(prefix_, std::string(name)); }
  absl::Status ReadFamily();
  absl::Status RefuseFeatures() const;
  absl::Status ReadExperts();
  absl::Status ReadHeads();
  // From the embedding's rows: the key vocab_size is often missing.
  absl::Status ReadVocabulary();

  const GgufFiles& files_;
  const GgufMetadata& metadata_;
  std::string prefix_;  // "llama."
  ModelConfig model_;
};

absl::Status ConfigReader::ReadFamily() {
  ASSIGN_OR_RETURN(const std::string_view name, metadata_.String(kArchitecture, kMaxNameBytes));
  const auto* const found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                         [&](const Architecture& a) { return a.name == name; });
  if (found == std::end(kArchitectures)) {
    return metadata_.Unsupported(kArchitecture,
                                 absl::StrCat("\"", std::string(name),
                                              "\" is not supported; llama, qwen2, qwen3 and "
                                              "qwen3moe are"));
  }
  model_.family = found->family;
  model_.names = &kGgufNames;
  prefix_ = absl::StrCat(std::string(name), ".");
  return absl::OkStatus();
}

absl::Status ConfigReader::RefuseFeatures() const {
  for (const Refused& refused : kRefused) {
    const std::string key = Key(refused.key);
    ASSIGN_OR_RETURN(const double value,
                     metadata_.NumberOr(key, refused.without_effect, -1e300, 1e300));
    if (value != 0 && value != refused.without_effect) {
      return metadata_.Unsupported(key, refused.what);
    }
  }
  const std::string window = Key("attention.sliding_window");
  ASSIGN_OR_RETURN(const int64_t tokens,
                   metadata_.IntOr(window, 0, 0, std::numeric_limits<int64_t>::max()));
  if (tokens != 0 && tokens < model_.max_positions) {
    return metadata_.Unsupported(
        window, "a sliding window is not supported; full attention in every layer is");
  }
  ASSIGN_OR_RETURN(const bool causal, metadata_.BoolOr(Key("attention.causal"), true));
  if (!causal) {
    return metadata_.Unsupported(Key("attention.causal"), "only causal attention is supported");
  }
  if (metadata_.Has(Key("rope.dimension_sections"))) {
    return metadata_.Unsupported(Key("rope.dimension_sections"),
                                 "multimodal RoPE is not supported");
  }
  return absl::OkStatus();
}

absl::Status ConfigReader::ReadExperts() {
  const std::string count_key = Key("expert_count");
  if (model_.family != ModelFamily::kQwen3Moe) {
    ASSIGN_OR_RETURN(const int64_t count, metadata_.IntOr(count_key, 0, 0, 1 << 20));
    if (count == 0) return absl::OkStatus();
    return metadata_.Unsupported(count_key,
                                 "a mixture of experts is supported in qwen3moe files only");
  }
  ASSIGN_OR_RETURN(model_.experts.count, metadata_.Int(count_key, 1, kMaxExperts));
  ASSIGN_OR_RETURN(model_.experts.per_token,
                   metadata_.Int(Key("expert_used_count"), 1,
                                 std::min(model_.experts.count, kMaxExpertsPerToken)));
  // Those who read such files take it so where nothing is said.
  ASSIGN_OR_RETURN(model_.experts.weights_sum_to_one,
                   metadata_.BoolOr(Key("expert_weights_norm"), true));
  ASSIGN_OR_RETURN(model_.intermediate_size,
                   metadata_.Int(Key("expert_feed_forward_length"), 1, kMaxIntermediate));
  return absl::OkStatus();
}

absl::Status ConfigReader::ReadHeads() {
  const std::string kv_key = Key("attention.head_count_kv");
  ASSIGN_OR_RETURN(const int64_t query_heads,
                   metadata_.Int(Key("attention.head_count"), 1, kMaxHeads));
  ASSIGN_OR_RETURN(const int64_t kv_heads, metadata_.IntOr(kv_key, query_heads, 1, kMaxHeads));
  if (query_heads % kv_heads != 0) {
    return metadata_.Error(kv_key, absl::StrCat("is ", kv_heads, ", which does not divide the ",
                                                query_heads, " query heads"));
  }
  if (query_heads / kv_heads > kMaxGroupSize) {
    return metadata_.Unsupported(
        kv_key, absl::StrCat(query_heads / kv_heads,
                             " query heads for each KV head are not supported; 1 to ",
                             kMaxGroupSize, " are"));
  }
  const std::string length_key = Key("attention.key_length");
  if (!metadata_.Has(length_key) && model_.hidden_size % query_heads != 0) {
    return metadata_.Error(Key("embedding_length"),
                           absl::StrCat("is ", model_.hidden_size, ", no multiple of the ",
                                        query_heads, " query heads, and there is no ", length_key));
  }
  ASSIGN_OR_RETURN(const int64_t head_dim,
                   metadata_.IntOr(length_key, model_.hidden_size / query_heads, 1, kMaxHidden));
  if (!IsHeadDim(head_dim)) {
    return metadata_.Unsupported(
        length_key,
        absl::StrCat("heads of ", head_dim, " dimensions are not supported; 64, 128 and 256 are"));
  }
  const std::string value_key = Key("attention.value_length");
  ASSIGN_OR_RETURN(const int64_t value_dim, metadata_.IntOr(value_key, head_dim, 1, kMaxHidden));
  if (value_dim != head_dim) {
    return metadata_.Unsupported(value_key, "values of another length than keys are not supported");
  }
  model_.num_query_heads = static_cast<uint32_t>(query_heads);
  model_.num_kv_heads = static_cast<uint32_t>(kv_heads);
  model_.head_dim = static_cast<uint32_t>(head_dim);
  return absl::OkStatus();
}

absl::Status ConfigReader::ReadVocabulary() {
  const auto embedding = files_.tensors().find(kEmbedding);
  if (embedding == files_.tensors().end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(files_.path(), ": tensor \"", kEmbedding, "\" is missing"));
  }
  const int64_t rows = embedding->second.rows();
  if (rows > kMaxVocabSize) {
    return absl::InvalidArgumentError(absl::StrCat(files_.path(), ": tensor \"", kEmbedding,
                                                   "\" has ", rows, " rows; at most ",
                                                   kMaxVocabSize, " are accepted"));
  }
  RETURN_IF_ERROR(metadata_.IntOr(Key("vocab_size"), rows, rows, rows).status());
  model_.vocab_size = rows;
  model_.tie_word_embeddings = files_.tensors().count(kOutput) == 0;
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ConfigReader::Read() {
  RETURN_IF_ERROR(ReadFamily());
  ASSIGN_OR_RETURN(const int64_t num_layers, metadata_.Int(Key("block_count"), 1, kMaxLayers));
  model_.num_layers = static_cast<uint32_t>(num_layers);
  ASSIGN_OR_RETURN(model_.hidden_size, metadata_.Int(Key("embedding_length"), 1, kMaxHidden));
  ASSIGN_OR_RETURN(model_.intermediate_size,
                   metadata_.Int(Key("feed_forward_length"), 1, kMaxIntermediate));
  ASSIGN_OR_RETURN(model_.max_positions,
                   metadata_.Int(Key("context_length"), 1, kMaxModelPositions));
  RETURN_IF_ERROR(RefuseFeatures());
  RETURN_IF_ERROR(ReadExperts());
  RETURN_IF_ERROR(ReadHeads());
  RETURN_IF_ERROR(ReadVocabulary());
  ASSIGN_OR_RETURN(model_.rope,
                   ReadGgufRope(files_, prefix_, model_.max_positions, model_.head_dim));
  model_.context_length = ContextLengthOf(model_);
  ASSIGN_OR_RETURN(const double epsilon,
                   metadata_.Number(Key("attention.layer_norm_rms_epsilon"), 1e-12, 1.0));
  model_.rms_norm_epsilon = static_cast<float>(epsilon);
  model_.qkv_bias = model_.family == ModelFamily::kQwen2;
  model_.qk_norm = model_.family == ModelFamily::kQwen3 || model_.family == ModelFamily::kQwen3Moe;
  return model_;
}

// Texts of tokens that end an answer, where they are control tokens.
constexpr std::string_view kEndTexts[] = {"<|eot_id|>",      "<|eom_id|>",    "<|im_end|>",
                                          "<|end_of_text|>", "<|endoftext|>", "<|end|>"};

void AddEnd(int64_t id, GenerationConfig& config) {
  const auto token = static_cast<int32_t>(id);
  auto& ids = config.eos_token_ids;
  if (std::find(ids.begin(), ids.end(), token) == ids.end()) ids.push_back(token);
}

absl::Status AddEnds(const GgufMetadata& metadata, int64_t vocab_size, GenerationConfig& config) {
  for (const char* const name : {"eos", "eot", "eom"}) {
    const std::string key = absl::StrCat("tokenizer.ggml.", name, "_token_id");
    if (!metadata.Has(key)) continue;
    ASSIGN_OR_RETURN(const int64_t id, metadata.Int(key, 0, vocab_size - 1));
    AddEnd(id, config);
  }
  if (!metadata.Has("tokenizer.ggml.tokens") || !metadata.Has("tokenizer.ggml.token_type")) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const auto tokens, metadata.Strings("tokenizer.ggml.tokens", kMaxTokens));
  ASSIGN_OR_RETURN(const auto types, metadata.Ints("tokenizer.ggml.token_type", kMaxTokens));
  const size_t count = std::min({tokens.size(), types.size(), static_cast<size_t>(vocab_size)});
  for (size_t i = 0; i < count && config.eos_token_ids.size() < kMaxEosTokens; ++i) {
    if (types[i] != kControlToken) continue;
    if (std::find(std::begin(kEndTexts), std::end(kEndTexts), tokens[i]) != std::end(kEndTexts)) {
      AddEnd(static_cast<int64_t>(i), config);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadFloat(const GgufMetadata& metadata, std::string_view key, double min, double max,
                       std::optional<float>& out) {
  if (!metadata.Has(key)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const double value, metadata.Number(key, min, max));
  out = static_cast<float>(value);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufFiles& files) {
  return ConfigReader(files).Read();
}

absl::StatusOr<GenerationConfig> ReadGgufGeneration(const GgufFiles& files,
                                                    const ModelConfig& model) {
  constexpr double kMinPositive = 1e-6;
  const GgufMetadata& metadata = files.metadata();
  GenerationConfig config;
  RETURN_IF_ERROR(AddEnds(metadata, model.vocab_size, config));
  constexpr char kBos[] = "tokenizer.ggml.bos_token_id";
  if (metadata.Has(kBos)) {
    ASSIGN_OR_RETURN(const int64_t id, metadata.Int(kBos, 0, model.vocab_size - 1));
    config.bos_token_id = static_cast<int32_t>(id);
  }
  RETURN_IF_ERROR(ReadFloat(metadata, "general.sampling.temp", 0, 100, config.temperature));
  RETURN_IF_ERROR(ReadFloat(metadata, "general.sampling.top_p", kMinPositive, 1, config.top_p));
  RETURN_IF_ERROR(ReadFloat(metadata, "general.sampling.min_p", 0, 1, config.min_p));
  RETURN_IF_ERROR(ReadFloat(metadata, "general.sampling.penalty_repeat", kMinPositive, 10,
                            config.repetition_penalty));
  ASSIGN_OR_RETURN(const int64_t top_k,
                   metadata.IntOr("general.sampling.top_k", 0, -1, kMaxVocabSize));
  if (top_k > 0) config.top_k = static_cast<int32_t>(top_k);
  return config;
}

}  // namespace retroinfer
