#include "gpu_worker/model/model_config.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/gemma3_config.h"
#include "gpu_worker/model/gpt_oss_config.h"
#include "gpu_worker/model/model_limits.h"
#include "gpu_worker/model/padded_heads.h"

namespace retroinfer {
namespace {

absl::Status Unsupported(const common::JsonReader& config, const std::string& key,
                         const std::string& problem) {
  return absl::UnimplementedError(absl::StrCat(config.place(), ": key \"", key, "\": ", problem));
}

// The family by model_type alone, by which transformers goes: a config.json that was written
// without a model names no architecture.
absl::StatusOr<Family> ReadModelType(const common::JsonReader& config) {
  ASSIGN_OR_RETURN(const std::string model_type, config.String("model_type"));
  if (const Family* const family = FindFamilyOfType(model_type)) return *family;
  return Unsupported(config, "model_type",
                     absl::StrCat(model_type.substr(0, 80), " is not supported; models of ",
                                  SupportedArchitectures(), " are"));
}

absl::StatusOr<Family> ReadFamily(const common::JsonReader& config) {
  if (!config.Has("architectures") && config.Has("model_type")) return ReadModelType(config);
  ASSIGN_OR_RETURN(const auto architectures, config.StringList("architectures", 16));
  if (architectures.size() != 1) {
    return config.Error("architectures",
                        absl::StrCat("has ", architectures.size(), " entries; needs exactly one"));
  }
  const std::string& name = architectures.front();
  const Family* const family = FindFamily(name);
  if (family == nullptr) {
    return Unsupported(
        config, "architectures",
        absl::StrCat(name.substr(0, 80), " is not supported; ", SupportedArchitectures(), " are"));
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

// A window as long as all that the model may be served with hides nothing.
absl::Status RefuseWindowOfPhi3(const common::JsonReader& config) {
  if (!config.Has("sliding_window")) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int64_t positions,
                   config.Int("max_position_embeddings", 1, kMaxModelPositions));
  ASSIGN_OR_RETURN(const int64_t window, config.Int("sliding_window", 1, kMaxModelPositions));
  return window >= positions ? absl::OkStatus() : Unsupported(config, "sliding_window", kNoWindow);
}

absl::Status RefuseSlidingWindow(const common::JsonReader& config, ModelFamily family,
                                 int64_t num_layers) {
  if (config.Has("layer_types")) RETURN_IF_ERROR(CheckLayerTypes(config, num_layers));
  if (family == ModelFamily::kMistral) return RefuseWindowOfMistral(config);
  if (family == ModelFamily::kPhi3) return RefuseWindowOfPhi3(config);
  // Windows of models of experts are of all layers, too.
  if (family == ModelFamily::kQwen3Moe) {
    return RefuseFlag(config, "use_sliding_window", kNoWindow);
  }
  const bool goes_by_types = family != ModelFamily::kMinistral3 && family != ModelFamily::kMixtral;
  if (config.Has("layer_types") && goes_by_types) return absl::OkStatus();
  if (family == ModelFamily::kLlama || family == ModelFamily::kSeedOss ||
      family == ModelFamily::kGranite || family == ModelFamily::kMinistral3 ||
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
  if (family == ModelFamily::kGptOss) return absl::OkStatus();  // has them all
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

// Folders of Phi-3 name code that transformers has had since.
absl::Status RefuseOwnCode(const common::JsonReader& config, ModelFamily family) {
  if (!config.Has("auto_map")) return absl::OkStatus();
  constexpr char kProblem[] = "models with code of their own are not supported";
  if (family != ModelFamily::kPhi3) return Unsupported(config, "auto_map", kProblem);
  ASSIGN_OR_RETURN(const common::JsonReader names, config.Object("auto_map"));
  for (const common::JsonMember& member : names.json().Members()) {
    ASSIGN_OR_RETURN(const std::string name, names.String(member));
    if (!name.starts_with("configuration_phi3.") && !name.starts_with("modeling_phi3.")) {
      return Unsupported(config, "auto_map", kProblem);
    }
  }
  return absl::OkStatus();
}

bool HasExperts(ModelFamily family) {
  return family == ModelFamily::kQwen3Moe || family == ModelFamily::kMixtral ||
         family == ModelFamily::kGptOss;
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
  RETURN_IF_ERROR(RefuseOwnCode(config, family));
  RETURN_IF_ERROR(RefuseBiases(config, family));
  RETURN_IF_ERROR(RefuseFlag(config, "use_mrope", "multimodal RoPE is not supported"));
  if (family == ModelFamily::kGemma3) return absl::OkStatus();  // gemma3_config.h has the rest
  if (config.Has("hidden_act")) {
    ASSIGN_OR_RETURN(const std::string activation, config.String("hidden_act"));
    if (activation != "silu" && activation != "swish") {
      return Unsupported(config, "hidden_act",
                         absl::StrCat(activation.substr(0, 40), " is not supported; silu is"));
    }
  }
  if (family == ModelFamily::kGptOss) return absl::OkStatus();  // gpt_oss_config.h has the rest
  return RefuseSlidingWindow(config, family, num_layers);
}

absl::StatusOr<int64_t> IntOrDefault(const common::JsonReader& config, const char* key,
                                     int64_t absent, int64_t max) {
  return absent == 0 ? config.Int(key, 1, max) : config.IntOr(key, absent, 1, max);
}

// Of the head's dimensions: a value, or null for the hidden size over the query heads, or nothing.
absl::StatusOr<int64_t> ReadHeadDim(const common::JsonReader& config, const ModelConfig& model,
                                    const FamilyDefaults& defaults, int64_t query_heads) {
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

// Sizes that no operation has code for are padded.
absl::Status SetHeadDim(const common::JsonReader& config, int64_t head_dim, ModelConfig& model) {
  model.head_dim = ServedHeadDim(head_dim);
  if (model.head_dim == 0) {
    return Unsupported(config, "head_dim",
                       absl::StrCat("heads of ", head_dim,
                                    " dimensions are not supported; 64, 128 and 256 are, and "
                                    "multiples of 8 from 32 on, padded to the next of these"));
  }
  if (model.head_dim == head_dim) return absl::OkStatus();
  model.stored_head_dim = static_cast<uint32_t>(head_dim);
  const auto refuse = [&](const char* what) {
    return Unsupported(config, "head_dim",
                       absl::StrCat("heads of ", head_dim, " dimensions, which are padded to ",
                                    model.head_dim, ", are not supported ", what));
  };
  if (model.quantization.has_value() || model.float4.has_value()) {
    return refuse("where weights are quantized");
  }
  if (model.family == ModelFamily::kQwen3 || model.family == ModelFamily::kGemma3) {
    return refuse("where each head has a norm");
  }
  return absl::OkStatus();
}

absl::Status ReadHeads(const common::JsonReader& config, const FamilyDefaults& defaults,
                       ModelConfig& model) {
  ASSIGN_OR_RETURN(const int64_t query_heads, IntOrDefault(config, "num_attention_heads",
                                                           defaults.sizes.query_heads, kMaxHeads));
  // Some families' default is one KV head for each query head; others' is a number of one of their
  // models.
  ASSIGN_OR_RETURN(
      const int64_t kv_heads,
      defaults.kv_heads
          ? config.IntOr("num_key_value_heads", query_heads, 1, kMaxHeads)
          : IntOrDefault(config, "num_key_value_heads", defaults.sizes.kv_heads, kMaxHeads));
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
  RETURN_IF_ERROR(SetHeadDim(config, head_dim, model));
  model.num_query_heads = static_cast<uint32_t>(query_heads);
  model.num_kv_heads = static_cast<uint32_t>(kv_heads);
  return absl::OkStatus();
}

// Reads what depends on the heads, too.
absl::Status ReadRope(const common::JsonReader& config, const FamilyDefaults& defaults,
                      ModelConfig& model) {
  // Ministral 3 has a scaling where nothing is said, whose numbers are of one of its models.
  if (model.family == ModelFamily::kMinistral3 && !config.Has("rope_parameters") &&
      !config.Has("rope_scaling")) {
    return config.Error("rope_parameters", "is missing");
  }
  ASSIGN_OR_RETURN(model.rope, ReadRopeConfig(config, model.max_positions, defaults.rope));
  const uint32_t rotated = model.rotated_dims();
  if (rotated == 0 || rotated % 2 != 0) {
    return Unsupported(config, "partial_rotary_factor",
                       absl::StrCat("RoPE of ", rotated, " of ", model.own_head_dim(),
                                    " numbers of a head is not supported; an even number is"));
  }
  for (const std::vector<double>* factors : {&model.rope.short_factors, &model.rope.long_factors}) {
    if (model.rope.type != RopeConfig::Type::kLong || factors->size() == rotated / 2) continue;
    return config.Error("rope_scaling",
                        absl::StrCat("has ", factors->size(), " factors, needs one for each of ",
                                     rotated / 2, " pairs of dimensions"));
  }
  if (model.rope.query_growth != 0 && model.rope.original_positions == 0) {
    return config.Error("rope_parameters",
                        "has \"llama_4_scaling_beta\" and no "
                        "\"original_max_position_embeddings\", by which queries grow");
  }
  model.context_length = ContextLengthOf(model);
  return absl::OkStatus();
}

// Granite's factors, of 1 where they are missing.
absl::Status ReadMultipliers(const common::JsonReader& config, ModelConfig& model) {
  constexpr double kLeast = 1e-6, kMost = 1e6;
  ASSIGN_OR_RETURN(model.embedding_multiplier,
                   config.NumberOr("embedding_multiplier", 1, kLeast, kMost));
  ASSIGN_OR_RETURN(model.residual_multiplier,
                   config.NumberOr("residual_multiplier", 1, kLeast, kMost));
  ASSIGN_OR_RETURN(model.logits_divisor, config.NumberOr("logits_scaling", 1, kLeast, kMost));
  ASSIGN_OR_RETURN(model.score_scale, config.NumberOr("attention_multiplier", 1, kLeast, kMost));
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

// The list of the outermost object that has one.
absl::Status ReadEosTokens(const common::JsonReader& config, ModelConfig& model) {
  if (!config.Has("eos_token_id") || !model.eos_token_ids.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto ids,
                   config.IntList("eos_token_id", 0, model.vocab_size - 1, kMaxEosTokens));
  model.eos_token_ids.assign(ids.begin(), ids.end());
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
  const bool is_mixtral =
      model.family == ModelFamily::kMixtral || model.family == ModelFamily::kGptOss;
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
  model.qkv_bias = model.family == ModelFamily::kQwen2 || model.family == ModelFamily::kGptOss;
  model.qk_norm = model.family == ModelFamily::kQwen3 || model.family == ModelFamily::kQwen3Moe ||
                  model.family == ModelFamily::kGemma3;
  if (HasExperts(model.family)) RETURN_IF_ERROR(ReadExperts(config, model));
  if (model.family == ModelFamily::kSeedOss) {
    ASSIGN_OR_RETURN(model.qkv_bias, config.BoolOr("attention_bias", true));
  }
  if (model.family == ModelFamily::kGranite) return ReadMultipliers(config, model);
  return model.family == ModelFamily::kSmolLm3 ? ReadLayersWithoutRope(config, model)
                                               : absl::OkStatus();
}

}  // namespace

int64_t ContextLengthOf(const ModelConfig& config) {
  // Gemma's positions are those behind its linear scaling.
  const bool is_scaled =
      config.family == ModelFamily::kGemma3 && config.rope.type == RopeConfig::Type::kLinear;
  if (is_scaled) return config.max_positions;
  return std::min(config.rope.ContextLength(config.max_positions), kMaxModelPositions);
}

absl::StatusOr<ModelConfig> ReadModelConfig(const common::JsonReader& whole,
                                            const common::JsonReader* hf_quant_config) {
  ModelConfig model;
  ASSIGN_OR_RETURN(const Family family, ReadFamily(whole));
  common::JsonReader config = whole;
  if (family.text_key != nullptr) {
    ASSIGN_OR_RETURN(config, whole.Object(family.text_key));
  }
  model.family = family.family;
  model.names = family.names;
  const FamilySizes& sizes = family.defaults.sizes;
  ASSIGN_OR_RETURN(const int64_t num_layers,
                   IntOrDefault(config, "num_hidden_layers", sizes.num_layers, kMaxLayers));
  model.num_layers = static_cast<uint32_t>(num_layers);
  RETURN_IF_ERROR(RefuseFeatures(config, model.family, num_layers));
  if (model.family != ModelFamily::kGptOss) {
    ASSIGN_OR_RETURN(model.quantization, ReadWeightQuantization(whole, hf_quant_config));
    if (model.quantization.has_value()) {
      model.has_kv_scheme = model.quantization->has_kv_scheme;
      model.float4 = model.quantization->float4;
    }
    if (model.float4.has_value()) model.quantization.reset();
  }
  ASSIGN_OR_RETURN(model.hidden_size,
                   IntOrDefault(config, "hidden_size", sizes.hidden_size, kMaxHidden));
  // Qwen3-MoE says under the usual name how large dense networks would be, of which it has none.
  const bool is_of_expert = model.family == ModelFamily::kQwen3Moe;
  ASSIGN_OR_RETURN(
      model.intermediate_size,
      IntOrDefault(config, is_of_expert ? "moe_intermediate_size" : "intermediate_size",
                   sizes.intermediate_size, kMaxIntermediate));
  ASSIGN_OR_RETURN(model.vocab_size,
                   IntOrDefault(config, "vocab_size", sizes.vocab_size, kMaxVocabSize));
  RETURN_IF_ERROR(ReadHeads(config, family.defaults, model));
  ASSIGN_OR_RETURN(model.max_positions, IntOrDefault(config, "max_position_embeddings",
                                                     sizes.max_positions, kMaxModelPositions));
  ASSIGN_OR_RETURN(const double epsilon,
                   config.NumberOr("rms_norm_eps", family.defaults.rms_norm_epsilon, 1e-12, 1.0));
  model.rms_norm_epsilon = static_cast<float>(epsilon);
  ASSIGN_OR_RETURN(model.tie_word_embeddings,
                   config.BoolOr("tie_word_embeddings", family.defaults.tie_word_embeddings));
  for (const common::JsonReader& reader : {config, whole}) {
    RETURN_IF_ERROR(ReadDType(reader, model));
    RETURN_IF_ERROR(ReadEosTokens(reader, model));
  }
  if (model.family == ModelFamily::kGemma3) {
    RETURN_IF_ERROR(ReadGemma3(config, model));
  } else {
    RETURN_IF_ERROR(ReadRope(config, family.defaults, model));
  }
  if (model.family == ModelFamily::kGptOss) RETURN_IF_ERROR(ReadGptOss(config, model));
  RETURN_IF_ERROR(ReadLayers(config, model));
  model.context_length = ContextLengthOf(model);
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
