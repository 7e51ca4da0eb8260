#include "gpu_worker/model/model_config.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

constexpr int64_t kMaxHidden = int64_t{1} << 16;
constexpr int64_t kMaxIntermediate = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 1024;
constexpr uint32_t kMaxGroupSize = 8;
constexpr size_t kMaxEosTokens = 64;

struct Family {
  const char* architecture;
  const char* model_type;
  ModelFamily family;
  const TensorNames* names;
};
constexpr Family kFamilies[] = {
    {"LlamaForCausalLM", "llama", ModelFamily::kLlama, &kLlamaNames},
    {"Qwen2ForCausalLM", "qwen2", ModelFamily::kQwen2, &kLlamaNames},
    {"Qwen3ForCausalLM", "qwen3", ModelFamily::kQwen3, &kLlamaNames},
};
constexpr char kSupported[] =
    "LlamaForCausalLM (Llama 3 to 3.2), Qwen2ForCausalLM (Qwen2.5) and Qwen3ForCausalLM are";

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

absl::Status RefuseSlidingWindow(const common::JsonReader& config, ModelFamily family,
                                 int64_t num_layers) {
  const std::string problem = "a sliding window is not supported; full attention in every layer is";
  if (config.Has("layer_types")) {
    ASSIGN_OR_RETURN(const auto types, config.StringList("layer_types", kMaxLayers));
    if (static_cast<int64_t>(types.size()) != num_layers) {
      return config.Error("layer_types", absl::StrCat("has ", types.size(), " entries for ",
                                                      num_layers, " layers"));
    }
    for (const std::string& type : types) {
      if (type != "full_attention") {
        return Unsupported(config, "layer_types",
                           absl::StrCat("\"", type.substr(0, 40),
                                        "\" is not supported; "
                                        "full_attention in every layer is"));
      }
    }
    return absl::OkStatus();
  }
  if (family == ModelFamily::kLlama) {
    return config.Has("sliding_window") ? Unsupported(config, "sliding_window", problem)
                                        : absl::OkStatus();
  }
  // Qwen: layers from max_window_layers on slide, if the window is in use at all.
  ASSIGN_OR_RETURN(const bool in_use, config.BoolOr("use_sliding_window", false));
  if (!in_use) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int64_t first, config.IntOr("max_window_layers", 28, 0, 1 << 20));
  return first < num_layers ? Unsupported(config, "use_sliding_window", problem) : absl::OkStatus();
}

// Everything that would change the result and is not implemented.
absl::Status RefuseFeatures(const common::JsonReader& config, ModelFamily family,
                            int64_t num_layers) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (config.Has(key)) {
      return Unsupported(config, key, "mixture of experts is not supported; dense models are");
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
  RETURN_IF_ERROR(RefuseFlag(config, "attention_bias",
                             family == ModelFamily::kQwen2
                                 ? "a bias of the output projection is not supported"
                                 : "biases in attention are supported for Qwen2ForCausalLM only"));
  RETURN_IF_ERROR(RefuseFlag(config, "mlp_bias", "biases in the MLP are not supported"));
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

absl::Status ReadHeads(const common::JsonReader& config, ModelConfig& model) {
  ASSIGN_OR_RETURN(const int64_t query_heads, config.Int("num_attention_heads", 1, kMaxHeads));
  // Llama's default is one KV head for each query head; Qwen's is a number of one of its models.
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
  int64_t head_dim = 128;  // Qwen3's default
  if (config.Has("head_dim") || model.family == ModelFamily::kQwen3) {
    ASSIGN_OR_RETURN(head_dim, config.IntOr("head_dim", head_dim, 1, kMaxHidden));
  } else {
    if (model.hidden_size % query_heads != 0) {
      return config.Error("hidden_size",
                          absl::StrCat("is ", model.hidden_size, ", no multiple of the ",
                                       query_heads, " attention heads, and there is no head_dim"));
    }
    head_dim = model.hidden_size / query_heads;
  }
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

}  // namespace

std::string_view ModelFamilyName(ModelFamily family) {
  switch (family) {
    case ModelFamily::kLlama:
      return "llama";
    case ModelFamily::kQwen2:
      return "qwen2";
    case ModelFamily::kQwen3:
      return "qwen3";
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
  ASSIGN_OR_RETURN(model.intermediate_size, config.Int("intermediate_size", 1, kMaxIntermediate));
  ASSIGN_OR_RETURN(model.vocab_size, config.Int("vocab_size", 1, kMaxVocabSize));
  RETURN_IF_ERROR(ReadHeads(config, model));
  ASSIGN_OR_RETURN(model.max_positions,
                   config.Int("max_position_embeddings", 1, kMaxModelPositions));
  ASSIGN_OR_RETURN(model.rope, ReadRopeConfig(config, model.max_positions));
  model.context_length = ContextLengthOf(model);
  ASSIGN_OR_RETURN(const double epsilon, config.NumberOr("rms_norm_eps", 1e-6, 1e-12, 1.0));
  model.rms_norm_epsilon = static_cast<float>(epsilon);
  ASSIGN_OR_RETURN(model.tie_word_embeddings, config.BoolOr("tie_word_embeddings", false));
  model.qkv_bias = model.family == ModelFamily::kQwen2;
  model.qk_norm = model.family == ModelFamily::kQwen3;
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
