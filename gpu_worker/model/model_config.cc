#include "gpu_worker/model/model_config.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/model_limits.h"

namespace retroinfer {
namespace {

// What transformers takes for keys that are not there.
struct Defaults {
  int64_t head_dim = 0;  // 0: the hidden size over the query heads
  bool tie_word_embeddings = false;
  double rope_theta = kDefaultRopeTheta;
};
constexpr Defaults kCommon;
constexpr Defaults kLargeHeads = {.head_dim = 128};
constexpr Defaults kOfMixtral = {.rope_theta = 1e6};
constexpr Defaults kOfSmolLm3 = {.tie_word_embeddings = true, .rope_theta = 2e6};

struct Family {
  const char* architecture;
  const char* model_type;
  ModelFamily family;
  const TensorNames* names;
  Defaults defaults;
};
constexpr Family kFamilies[] = {
    {"LlamaForCausalLM", "llama", ModelFamily::kLlama, &kLlamaNames, kCommon},
    {"Qwen2ForCausalLM", "qwen2", ModelFamily::kQwen2, &kLlamaNames, kCommon},
    {"Qwen3ForCausalLM", "qwen3", ModelFamily::kQwen3, &kLlamaNames, kLargeHeads},
    {"MistralForCausalLM", "mistral", ModelFamily::kMistral, &kLlamaNames, kCommon},
    {"SeedOssForCausalLM", "seed_oss", ModelFamily::kSeedOss, &kLlamaNames, kLargeHeads},
    {"SmolLM3ForCausalLM", "smollm3", ModelFamily::kSmolLm3, &kLlamaNames, kOfSmolLm3},
    {"Qwen3MoeForCausalLM", "qwen3_moe", ModelFamily::kQwen3Moe, &kLlamaNames, kCommon},
    {"MixtralForCausalLM", "mixtral", ModelFamily::kMixtral, &kMixtralNames, kOfMixtral},
};
constexpr char kSupported[] =
    "LlamaForCausalLM (Llama 3 to 3.2), Qwen2ForCausalLM (Qwen2.5), Qwen3ForCausalLM, "
    "MistralForCausalLM, SeedOssForCausalLM, SmolLM3ForCausalLM, Qwen3MoeForCausalLM and "
    "MixtralForCausalLM are";

absl::Status Unsupported(const common::JsonReader& config, const std::string& key,
                         const std::string& problem) {
  return absl::UnimplementedError(absl::StrCat(config.place(), ": key \"", key, "\": ", problem));
}

// The family by model_type alone, by which transformers goes: a config.json that was written
// without a model names no architecture.
absl::StatusOr<Family> ReadModelType(const common::JsonReader& config) {
  ASSIGN_OR_RETURN(const std::string model_type, config.String("model_type"));
  for (const Family& family : kFamilies) {
    if (model_type == family.model_type) return family;
  }
  return Unsupported(
      config, "model_type",
      absl::StrCat(model_type.substr(0, 80), " is not supported; models of ", kSupported));
}

absl::StatusOr<Family> ReadFamily(const common::JsonReader& config) {
  if (!config.Has("architectures") && config.Has("model_type")) return ReadModelType(config);
  ASSIGN_OR_RETURN(const auto architectures, config.StringList("architectures", 16));
  if (architectures.size() != 1) {
    return config.Error("architectures",
                        absl::StrCat("has ", architectures.size(), " entries; needs exactly one"));
  }
  const std::string& name = architectures.front();
  const auto* family = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                    [&](const Family& f) { return name == f.architecture; });
  if (family == std::end(kFamilies)) {
    return Unsupported(config, "architectures",
                       absl::StrCat(name.substr(0, 80), " is not supported; ", kSupported));
  }
  if (config.Has("model_type")) {
    ASSIGN_OR_RETURN(const std::string model_type, config.String("model_type"));
    if (model_type != family->model_type) {
      return config.Error("model_type", absl::StrCat("is \"", model_type.substr(0, 80), "\"; ",
                                                     name, " needs \"", family->model_type, "\""));
    }
  }
  return *family;
}

// Refuses a key that must be false, null or absent.
absl::Status RefuseFlag(const common::JsonReader& config, const std::string& key,
                        const std::string& problem) {
  ASSIGN_OR_RETURN(const bool value, config.BoolOr(key, false));
  return value ? Unsupported(config, key, problem) : absl::OkStatus();
}

constexpr char kNoWindow[] = "a sliding window is not supported; full attention in every layer is";

absl::Status CheckLayerTypes(const common::JsonReader& config, int64_t num_layers) {
  ASSIGN_OR_RETURN(const auto types, config.StringList("layer_types", kMaxLayers));
  if (static_cast<int64_t>(types.size()) != num_layers) {
    return config.Error("layer_types",
                        absl::StrCat("has ", types.size(), " entries for ", num_layers, " layers"));
  }
  for (const std::string& type : types) {
    if (type == "full_attention") continue;
    return Unsupported(config, "layer_types",
                       absl::StrCat("\"", type.substr(0, 40),
                                    "\" is not supported; full_attention in every layer is"));
  }
  return absl::OkStatus();
}

// Mistral's windows are of all layers, whatever layer_types says, and a missing key is one of 4096
// tokens: Mistral 7B v0.1, the family's first model, had it.
absl::Status RefuseWindowOfMistral(const common::JsonReader& config) {
  if (config.Has("sliding_window")) return Unsupported(config, "sliding_window", kNoWindow);
  if (config.json().Find("sliding_window")) return absl::OkStatus();  // null
  return Unsupported(config, "sliding_window",
                     "is missing, which means a window of 4096 tokens; a sliding window is not "
                     "supported, full attention in every layer (null) is");
}

absl::Status RefuseSlidingWindow(const common::JsonReader& config, ModelFamily family,
                                 int64_t num_layers) {
  if (config.Has("layer_types")) RETURN_IF_ERROR(CheckLayerTypes(config, num_layers));
  if (family == ModelFamily::kMistral) return RefuseWindowOfMistral(config);
  // Windows of models of experts are of all layers, too.
  if (family == ModelFamily::kQwen3Moe) {
    return RefuseFlag(config, "use_sliding_window", kNoWindow);
  }
  const bool has_types = config.Has("layer_types") && family != ModelFamily::kMixtral;
  if (has_types) return absl::OkStatus();
  if (family == ModelFamily::kLlama || family == ModelFamily::kSeedOss ||
      family == ModelFamily::kMixtral) {
    return config.Has("sliding_window") ? Unsupported(config, "sliding_window", kNoWindow)
                                        : absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const bool in_use, config.BoolOr("use_sliding_window", false));
  if (!in_use) return absl::OkStatus();
  if (family == ModelFamily::kSmolLm3) {  // layers without RoPE slide
    return config.Has("sliding_window") ? Unsupported(config, "use_sliding_window", kNoWindow)
                                        : absl::OkStatus();
  }
  // Qwen: layers from max_window_layers on slide, if the window is in use at all.
  ASSIGN_OR_RETURN(const int64_t first, config.IntOr("max_window_layers", 28, 0, 1 << 20));
  return first < num_layers ? Unsupported(config, "use_sliding_window", kNoWindow)
                            : absl::OkStatus();
}

absl::Status RefuseBiases(const common::JsonReader& config, ModelFamily family) {
  constexpr char kOfOutput[] = "a bias of the output projection is not supported";
  if (family == ModelFamily::kSeedOss) {
    RETURN_IF_ERROR(RefuseFlag(config, "attention_out_bias", kOfOutput));
  } else {
    RETURN_IF_ERROR(RefuseFlag(config, "attention_bias",
                               family == ModelFamily::kQwen2
                                   ? kOfOutput
                                   : "biases in attention are supported for Qwen2ForCausalLM and "
                                     "SeedOssForCausalLM only"));
  }
  return RefuseFlag(config, "mlp_bias", "biases in the MLP are not supported");
}

bool HasExperts(ModelFamily family) {
  return family == ModelFamily::kQwen3Moe || family == ModelFamily::kMixtral;
}

// Everything that would change the result and is not implemented.
absl::Status RefuseFeatures(const common::JsonReader& config, ModelFamily family,
                            int64_t num_layers) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (config.Has(key) && !HasExperts(family)) {
      return Unsupported(config, key,
                         "a mixture of experts is supported for Qwen3MoeForCausalLM and "
                         "MixtralForCausalLM only");
    }
  }
  if (config.Has("dual_chunk_attention_config")) {
    return Unsupported(config, "dual_chunk_attention_config",
                       "dual chunk attention is not supported; removing the key limits the model "
                       "to its plain context");
  }
  if (config.Has("auto_map")) {
    return Unsupported(config, "auto_map", "models with code of their own are not supported");
  }
  RETURN_IF_ERROR(RefuseBiases(config, family));
  RETURN_IF_ERROR(RefuseFlag(config, "use_mrope", "multimodal RoPE is not supported"));
  if (config.Has("hidden_act")) {
    ASSIGN_OR_RETURN(const std::string activation, config.String("hidden_act"));
    if (activation != "silu" && activation != "swish") {
      return Unsupported(config, "hidden_act",
                         absl::StrCat(activation.substr(0, 40), " is not supported; silu is"));
    }
  }
  return RefuseSlidingWindow(config, family, num_layers);
}

// Of the head's dimensions: a value, or null for the hidden size over the query heads, or nothing.
absl::StatusOr<int64_t> ReadHeadDim(const common::JsonReader& config, const ModelConfig& model,
                                    const Defaults& defaults, int64_t query_heads) {
  const bool is_null = !config.Has("head_dim") && config.json().Find("head_dim");
  const bool null_is_absent = model.family == ModelFamily::kQwen3;
  if (config.Has("head_dim") || (defaults.head_dim != 0 && (!is_null || null_is_absent))) {
    return config.IntOr("head_dim", defaults.head_dim, 1, kMaxHidden);
  }
  if (model.hidden_size % query_heads != 0) {
    return config.Error("hidden_size",
                        absl::StrCat("is ", model.hidden_size, ", no multiple of the ", query_heads,
                                     " attention heads, and there is no head_dim"));
  }
  return model.hidden_size / query_heads;
}

absl::Status ReadHeads(const common::JsonReader& config, const Defaults& defaults,
                       ModelConfig& model) {
  ASSIGN_OR_RETURN(const int64_t query_heads, config.Int("num_attention_heads", 1, kMaxHeads));
  // Llama's default is one KV head for each query head; others' is a number of one of their models.
  const bool may_lack = model.family == ModelFamily::kLlama;
  ASSIGN_OR_RETURN(const int64_t kv_heads,
                   may_lack ? config.IntOr("num_key_value_heads", query_heads, 1, kMaxHeads)
                            : config.Int("num_key_value_heads", 1, kMaxHeads));
  if (query_heads % kv_heads != 0) {
    return config.Error(
        "num_key_value_heads",
        absl::StrCat("is ", kv_heads, ", which does not divide the ", query_heads, " query heads"));
  }
  if (query_heads / kv_heads > kMaxGroupSize) {
    return Unsupported(config, "num_key_value_heads",
                       absl::StrCat(query_heads / kv_heads,
                                    " query heads for each KV head are not supported; 1 to ",
                                    kMaxGroupSize, " are"));
  }
  ASSIGN_OR_RETURN(const int64_t head_dim, ReadHeadDim(config, model, defaults, query_heads));
  if (head_dim != 64 && head_dim != 128) {
    return Unsupported(config, "head_dim",
                       absl::StrCat("heads of ", head_dim,
                                    " dimensions are not supported; 64 and 128 "
                                    "are"));
  }
  model.num_query_heads = static_cast<uint32_t>(query_heads);
  model.num_kv_heads = static_cast<uint32_t>(kv_heads);
  model.head_dim = static_cast<uint32_t>(head_dim);
  return absl::OkStatus();
}

absl::StatusOr<DType> DTypeUnder(const common::JsonReader& config, const char* key) {
  ASSIGN_OR_RETURN(const std::string name, config.String(key));
  if (name == "bfloat16") return DType::kBf16;
  if (name == "float16") return DType::kF16;
  if (name == "float32") return DType::kF32;
  return Unsupported(
      config, key,
      absl::StrCat(name.substr(0, 40), " is not supported; bfloat16, float16 and float32 are"));
}

bool SaysNothing(const common::JsonReader& config, const char* key) {
  return !config.Has(key) || config.json().Find(key)->String() == "auto";
}

// Transformers 5 leaves the key out where nobody has set it.
absl::Status ReadDType(const common::JsonReader& config, ModelConfig& model) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (model.dtype.has_value() || SaysNothing(config, key)) continue;
    ASSIGN_OR_RETURN(model.dtype, DTypeUnder(config, key));
  }
  return absl::OkStatus();
}

// SmolLM3: each fourth layer leaves queries and keys unturned, where the config says nothing else.
absl::Status ReadLayersWithoutRope(const common::JsonReader& config, ModelConfig& model) {
  std::vector<int64_t> has_rope;
  if (config.Has("no_rope_layers")) {
    ASSIGN_OR_RETURN(has_rope, config.IntList("no_rope_layers", 0, 1, kMaxLayers));
    if (has_rope.size() < model.num_layers) {
      return config.Error("no_rope_layers", absl::StrCat("has ", has_rope.size(), " entries for ",
                                                         model.num_layers, " layers"));
    }
  }
  ASSIGN_OR_RETURN(const int64_t interval,
                   config.IntOr("no_rope_layer_interval", 4, 1, kMaxLayers));
  for (uint32_t layer = 0; layer < model.num_layers; ++layer) {
    const bool without = has_rope.empty() ? (layer + 1) % interval == 0 : has_rope[layer] == 0;
    if (without) model.layers_without_rope.push_back(layer);
  }
  return absl::OkStatus();
}

// Refuses layers of a dense network beside those of experts, and experts that all tokens share.
absl::Status RefuseOtherNetworks(const common::JsonReader& config) {
  ASSIGN_OR_RETURN(const int64_t step, config.IntOr("decoder_sparse_step", 1, 0, kMaxLayers));
  if (step != 1) {
    return Unsupported(config, "decoder_sparse_step",
                       absl::StrCat("experts in each layer (1) are supported, this is ", step));
  }
  if (config.Has("mlp_only_layers")) {
    ASSIGN_OR_RETURN(const auto layers,
                     config.IntList("mlp_only_layers", 0, kMaxLayers, kMaxLayers));
    if (!layers.empty()) {
      return Unsupported(config, "mlp_only_layers",
                         "experts in each layer (an empty list) are supported");
    }
  }
  for (const char* key : {"shared_expert_intermediate_size", "n_shared_experts"}) {
    if (config.Has(key)) {
      return Unsupported(config, key, "experts that all tokens share are not supported");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadExperts(const common::JsonReader& config, ModelConfig& model) {
  RETURN_IF_ERROR(RefuseOtherNetworks(config));
  const bool is_mixtral = model.family == ModelFamily::kMixtral;
  // Newer tools write Qwen's number under Mixtral's name, too.
  const char* const count_key =
      is_mixtral || !config.Has("num_experts") ? "num_local_experts" : "num_experts";
  ASSIGN_OR_RETURN(model.experts.count, config.Int(count_key, 1, kMaxExperts));
  ASSIGN_OR_RETURN(
      model.experts.per_token,
      config.Int("num_experts_per_tok", 1, std::min(model.experts.count, kMaxExpertsPerToken)));
  model.experts.weights_sum_to_one = is_mixtral;
  if (is_mixtral) return absl::OkStatus();
  ASSIGN_OR_RETURN(model.experts.weights_sum_to_one, config.BoolOr("norm_topk_prob", false));
  return absl::OkStatus();
}

// What the layers of one family have and others do not.
absl::Status ReadLayers(const common::JsonReader& config, ModelConfig& model) {
  model.qkv_bias = model.family == ModelFamily::kQwen2;
  model.qk_norm = model.family == ModelFamily::kQwen3 || model.family == ModelFamily::kQwen3Moe;
  if (HasExperts(model.family)) RETURN_IF_ERROR(ReadExperts(config, model));
  if (model.family == ModelFamily::kSeedOss) {
    ASSIGN_OR_RETURN(model.qkv_bias, config.BoolOr("attention_bias", true));
  }
  return model.family == ModelFamily::kSmolLm3 ? ReadLayersWithoutRope(config, model)
                                               : absl::OkStatus();
}

}  // namespace

std::string_view ModelFamilyName(ModelFamily family) {
  switch (family) {
    case ModelFamily::kLlama:
      return "llama";
    case ModelFamily::kQwen2:
      return "qwen2";
    case ModelFamily::kQwen3:
      return "qwen3";
    case ModelFamily::kMistral:
      return "mistral";
    case ModelFamily::kSeedOss:
      return "seed_oss";
    case ModelFamily::kSmolLm3:
      return "smollm3";
    case ModelFamily::kQwen3Moe:
      return "qwen3_moe";
    case ModelFamily::kMixtral:
      return "mixtral";
  }
  return "unknown";
}

std::string_view ModelArchitecture(ModelFamily family) {
  for (const Family& entry : kFamilies) {
    if (entry.family == family) return entry.architecture;
  }
  return "unknown";
}

int64_t ContextLengthOf(const ModelConfig& config) {
  return std::min(config.rope.ContextLength(config.max_positions), kMaxModelPositions);
}

absl::StatusOr<ModelConfig> ReadModelConfig(const common::JsonReader& config,
                                            const common::JsonReader* hf_quant_config) {
  ModelConfig model;
  ASSIGN_OR_RETURN(const Family family, ReadFamily(config));
  model.family = family.family;
  model.names = family.names;
  ASSIGN_OR_RETURN(const int64_t num_layers, config.Int("num_hidden_layers", 1, kMaxLayers));
  model.num_layers = static_cast<uint32_t>(num_layers);
  RETURN_IF_ERROR(RefuseFeatures(config, model.family, num_layers));
  ASSIGN_OR_RETURN(model.quantization, ReadWeightQuantization(config, hf_quant_config));
  ASSIGN_OR_RETURN(model.hidden_size, config.Int("hidden_size", 1, kMaxHidden));
  // Qwen3-MoE says under the usual name how large dense networks would be, of which it has none.
  const bool is_of_expert = model.family == ModelFamily::kQwen3Moe;
  ASSIGN_OR_RETURN(model.intermediate_size,
                   config.Int(is_of_expert ? "moe_intermediate_size" : "intermediate_size", 1,
                              kMaxIntermediate));
  ASSIGN_OR_RETURN(model.vocab_size, config.Int("vocab_size", 1, kMaxVocabSize));
  RETURN_IF_ERROR(ReadHeads(config, family.defaults, model));
  ASSIGN_OR_RETURN(model.max_positions,
                   config.Int("max_position_embeddings", 1, kMaxModelPositions));
  ASSIGN_OR_RETURN(model.rope,
                   ReadRopeConfig(config, model.max_positions, family.defaults.rope_theta));
  model.context_length = ContextLengthOf(model);
  ASSIGN_OR_RETURN(const double epsilon, config.NumberOr("rms_norm_eps", 1e-6, 1e-12, 1.0));
  model.rms_norm_epsilon = static_cast<float>(epsilon);
  ASSIGN_OR_RETURN(model.tie_word_embeddings,
                   config.BoolOr("tie_word_embeddings", family.defaults.tie_word_embeddings));
  RETURN_IF_ERROR(ReadLayers(config, model));
  RETURN_IF_ERROR(ReadDType(config, model));
  if (config.Has("eos_token_id")) {
    ASSIGN_OR_RETURN(const auto ids,
                     config.IntList("eos_token_id", 0, model.vocab_size - 1, kMaxEosTokens));
    model.eos_token_ids.assign(ids.begin(), ids.end());
  }
  return model;
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& folder) {
  ASSIGN_OR_RETURN(
      const common::JsonReader config,
      common::JsonReader::LoadObject(folder + "/config.json", folder + "/config.json"));
  const absl::StatusOr<common::JsonReader> quantization = common::JsonReader::LoadObject(
      folder + "/hf_quant_config.json", folder + "/hf_quant_config.json");
  if (absl::IsNotFound(quantization.status())) return ReadModelConfig(config);
  RETURN_IF_ERROR(quantization.status());
  return ReadModelConfig(config, &*quantization);
}

}  // namespace retroinfer
