#include "gpu_worker/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "build_paths.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As the makers published them, without keys that have no effect.
json Llama31() {
  return json::parse(R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 131072,
    "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "use_cache": true, "vocab_size": 128256})");
}
json Qwen25() {
  return json::parse(R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 3584,
    "intermediate_size": 18944, "max_position_embeddings": 32768, "max_window_layers": 28,
    "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 131072, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "use_sliding_window": false, "vocab_size": 152064})");
}
json Qwen3() {
  return json::parse(R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
    "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
    "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "use_sliding_window": false, "vocab_size": 151936})");
}
json MistralNemo() {
  return json::parse(R"({"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": 1, "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 5120, "intermediate_size": 14336, "max_position_embeddings": 131072,
    "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "vocab_size": 131072})");
}
json SeedOss() {
  return json::parse(R"({"architectures": ["SeedOssForCausalLM"], "attention_bias": true,
    "attention_out_bias": false, "bos_token_id": 0, "eos_token_id": 2, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 27648,
    "max_position_embeddings": 524288, "mlp_bias": false, "model_type": "seed_oss",
    "num_attention_heads": 80, "num_hidden_layers": 64, "num_key_value_heads": 8,
    "residual_dropout": 0.1, "rms_norm_eps": 1e-06, "rope_scaling": {"rope_type": "default"},
    "rope_theta": 10000000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "vocab_size": 155136})");
}
json SmolLm3() {
  json config = json::parse(R"({"architectures": ["SmolLM3ForCausalLM"], "attention_bias": false,
    "bos_token_id": null, "eos_token_id": 128012, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 11008, "max_position_embeddings": 65536, "max_window_layers": 28,
    "mlp_bias": false, "model_type": "smollm3", "no_rope_layer_interval": 4,
    "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4,
    "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 5000000.0,
    "sliding_window": null, "torch_dtype": "bfloat16", "use_sliding_window": false,
    "vocab_size": 128256})");
  config["layer_types"] = std::vector<std::string>(36, "full_attention");
  return config;
}

json Granite31() {
  return json::parse(R"({"architectures": ["GraniteForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.1, "attention_multiplier": 0.015625, "bos_token_id": 0,
    "embedding_multiplier": 12.0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 8192, "logits_scaling": 8.0, "max_position_embeddings": 131072,
    "mlp_bias": false, "model_type": "granite", "num_attention_heads": 32, "num_hidden_layers": 40,
    "num_key_value_heads": 8, "pad_token_id": 0, "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 5000000.0,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true,
    "vocab_size": 49155})");
}
json Phi4Mini() {
  json config = json::parse(R"({"architectures": ["Phi3ForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "auto_map": {
      "AutoConfig": "configuration_phi3.Phi3Config",
      "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
    "bos_token_id": 199999, "embd_pdrop": 0.0, "eos_token_id": 199999, "hidden_act": "silu",
    "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 131072,
    "mlp_bias": false, "model_type": "phi3", "num_attention_heads": 24, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "original_max_position_embeddings": 4096, "pad_token_id": 199999,
    "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
    "rope_scaling": {"type": "longrope"}, "rope_theta": 10000.0, "sliding_window": 262144,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 200064})");
  config["rope_scaling"]["short_factor"] = std::vector<double>(48, 1.0);
  config["rope_scaling"]["long_factor"] = std::vector<double>(48, 2.5);
  return config;
}
json Ministral3() {
  return json::parse(R"({"architectures": ["Ministral3ForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": 1, "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 262144,
    "model_type": "ministral3", "num_attention_heads": 32, "num_hidden_layers": 34,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_parameters": {"type": "yarn",
      "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16384,
      "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0,
      "llama_4_scaling_beta": 0.1},
    "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "vocab_size": 131072})");
}

json Qwen3Moe() {
  return json::parse(R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
    "max_position_embeddings": 262144, "max_window_layers": 48, "mlp_only_layers": [],
    "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000,
    "router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936})");
}
json Mixtral() {
  return json::parse(R"({"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral",
    "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
    "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
    "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "vocab_size": 32000})");
}

std::vector<json> Dense() {
  return {Llama31(), Qwen25(),    Qwen3(),    MistralNemo(), SeedOss(),
          SmolLm3(), Granite31(), Phi4Mini(), Ministral3()};
}
std::vector<json> Families() {
  std::vector<json> families = Dense();
  families.push_back(Qwen3Moe());
  families.push_back(Mixtral());
  return families;
}

absl::StatusOr<ModelConfig> Read(const json& config) {
  const std::string text = config.dump();
  const auto object = common::JsonReader::ParseObject(text, "config.json");
  EXPECT_TRUE(object.ok()) << object.status();
  return ReadModelConfig(*object);
}

// Reads `base` with one key set to `value` and expects an error that names file and key.
void ExpectError(json base, const std::string& key, const json& value, absl::StatusCode code,
                 const std::string& part = "") {
  base[key] = value;
  const auto config = Read(base);
  ASSERT_EQ(config.status().code(), code) << key << " " << value << ": " << config.status();
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("config.json")) << key;
  EXPECT_THAT(std::string(config.status().message()), HasSubstr(key)) << key;
  EXPECT_THAT(std::string(config.status().message()), HasSubstr(part)) << key;
}
void ExpectUnsupported(const json& base, const std::string& key, const json& value,
                       const std::string& part = "") {
  ExpectError(base, key, value, absl::StatusCode::kUnimplemented, part);
}
void ExpectInvalid(const json& base, const std::string& key, const json& value,
                   const std::string& part = "") {
  ExpectError(base, key, value, absl::StatusCode::kInvalidArgument, part);
}

TEST(ModelConfigTest, Llama31) {
  const auto config = Read(Llama31());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, ModelFamily::kLlama);
  EXPECT_EQ(config->hidden_size, 4096);
  EXPECT_EQ(config->intermediate_size, 14336);
  EXPECT_EQ(config->num_layers, 32u);
  EXPECT_EQ(config->num_query_heads, 32u);
  EXPECT_EQ(config->num_kv_heads, 8u);
  EXPECT_EQ(config->head_dim, 128u);
  EXPECT_EQ(config->group_size(), 4u);
  EXPECT_EQ(config->query_size(), 4096);
  EXPECT_EQ(config->kv_size(), 1024);
  EXPECT_EQ(config->vocab_size, 128256);
  EXPECT_EQ(config->context_length, 131072);
  EXPECT_FLOAT_EQ(config->rms_norm_epsilon, 1e-5f);
  EXPECT_EQ(config->rope.type, RopeConfig::Type::kLlama3);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_FALSE(config->qk_norm);
  EXPECT_EQ(config->dtype, DType::kBf16);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(128001, 128008, 128009));
  EXPECT_EQ(config->geometry(kBf16Kv), (KvGeometry{32, 8, 128, kBf16Kv}));
}

TEST(ModelConfigTest, Qwen25) {
  const auto config = Read(Qwen25());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, ModelFamily::kQwen2);
  EXPECT_EQ(config->head_dim, 128u);
  EXPECT_EQ(config->group_size(), 7u);
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_FALSE(config->qk_norm);
  EXPECT_EQ(config->context_length, 32768);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(151645));
}

TEST(ModelConfigTest, YarnLengthensTheContext) {
  json qwen = Qwen25();
  qwen["rope_scaling"] = {
      {"factor", 4.0}, {"original_max_position_embeddings", 32768}, {"type", "yarn"}};
  EXPECT_EQ(Read(qwen)->context_length, 131072);
}

TEST(ModelConfigTest, Qwen3) {
  const auto config = Read(Qwen3());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, ModelFamily::kQwen3);
  EXPECT_EQ(config->head_dim, 128u);
  EXPECT_EQ(config->query_size(), 2048);
  EXPECT_TRUE(config->qk_norm);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_TRUE(config->tie_word_embeddings);
  json without = Qwen3();
  without.erase("head_dim");
  EXPECT_EQ(Read(without)->head_dim, 128u);
}

TEST(ModelConfigTest, MistralNemo) {
  const auto config = Read(MistralNemo());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, ModelFamily::kMistral);
  EXPECT_EQ(ModelFamilyName(config->family), "mistral");
  EXPECT_EQ(config->head_dim, 128u);
  EXPECT_EQ(config->query_size(), 4096);
  EXPECT_EQ(config->context_length, 131072);
  EXPECT_EQ(config->rope, RopeConfig{.theta = 1e6});
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_FALSE(config->qk_norm);
  json without = MistralNemo();
  without["hidden_size"] = 4096;
  without.erase("head_dim");
  EXPECT_EQ(Read(without)->head_dim, 128u);
}

TEST(ModelConfigTest, WindowsOfMistralAreRefusedAlsoWhereTheKeyIsMissing) {
  ExpectUnsupported(MistralNemo(), "sliding_window", 4096, "sliding window");
  json types = MistralNemo();  // which Mistral does not go by
  types["layer_types"] = std::vector<std::string>(40, "full_attention");
  EXPECT_TRUE(Read(types).ok());
  ExpectUnsupported(types, "sliding_window", 4096, "sliding window");
  json missing = MistralNemo();
  missing.erase("sliding_window");
  const absl::Status status = Read(missing).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("4096 tokens"));
}

TEST(ModelConfigTest, SeedOss) {
  const auto config = Read(SeedOss());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, ModelFamily::kSeedOss);
  EXPECT_EQ(ModelFamilyName(config->family), "seed_oss");
  EXPECT_EQ(config->context_length, 524288);
  EXPECT_TRUE(config->qkv_bias);
  ExpectUnsupported(SeedOss(), "attention_out_bias", true, "output projection");
  ExpectUnsupported(SeedOss(), "sliding_window", 4096, "sliding window");
  json other = SeedOss();
  other["attention_bias"] = false;
  EXPECT_FALSE(Read(other)->qkv_bias);
  // Biases and 128 are the defaults; null stands for the hidden size over the heads.
  other.erase("attention_bias");
  other.erase("head_dim");
  EXPECT_TRUE(Read(other)->qkv_bias);
  EXPECT_EQ(Read(other)->head_dim, 128u);
  other["head_dim"] = nullptr;
  EXPECT_EQ(Read(other)->head_dim, 64u);
}

TEST(ModelConfigTest, SmolLm3) {
  const auto config = Read(SmolLm3());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, ModelFamily::kSmolLm3);
  EXPECT_EQ(ModelFamilyName(config->family), "smollm3");
  EXPECT_EQ(config->head_dim, 128u);
  EXPECT_TRUE(config->tie_word_embeddings);  // the default
  EXPECT_THAT(config->layers_without_rope, ElementsAre(3, 7, 11, 15, 19, 23, 27, 31, 35));
  json other = SmolLm3();
  other.erase("rope_theta");
  EXPECT_EQ(Read(other)->rope.theta, 2e6);
  other["tie_word_embeddings"] = false;
  EXPECT_FALSE(Read(other)->tie_word_embeddings);
}

TEST(ModelConfigTest, LayersOfSmolLm3WithoutRope) {
  json config = SmolLm3();
  config.erase("layer_types");
  config["num_hidden_layers"] = 4;
  config["no_rope_layer_interval"] = 2;
  EXPECT_THAT(Read(config)->layers_without_rope, ElementsAre(1, 3));
  config["no_rope_layers"] = {0, 1, 1, 0, 0};  // longer than needed, as transformers allows
  EXPECT_THAT(Read(config)->layers_without_rope, ElementsAre(0, 3));
  ExpectInvalid(config, "no_rope_layers", {1, 1, 1}, "4 layers");
  ExpectInvalid(config, "no_rope_layers", {1, 1, 2, 0});
  ExpectInvalid(config, "no_rope_layers", "all");
  ExpectInvalid(config, "no_rope_layer_interval", 0);
  config["use_sliding_window"] = true;  // without a length there is none
  EXPECT_TRUE(Read(config).ok());
  config["sliding_window"] = 4096;
  ExpectUnsupported(config, "use_sliding_window", true, "sliding window");
  // Others have no such layers, whatever they say.
  json llama = Llama31();
  llama["no_rope_layers"] = std::vector<int>(32, 0);
  EXPECT_TRUE(Read(llama)->layers_without_rope.empty());
}

TEST(ModelConfigTest, Qwen3Moe) {
  const auto config = Read(Qwen3Moe());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, ModelFamily::kQwen3Moe);
  EXPECT_EQ(ModelFamilyName(config->family), "qwen3_moe");
  EXPECT_EQ(ModelArchitecture(config->family), "Qwen3MoeForCausalLM");
  EXPECT_EQ(config->experts.count, 128);
  EXPECT_EQ(config->experts.per_token, 8);
  EXPECT_TRUE(config->experts.weights_sum_to_one);
  EXPECT_EQ(config->intermediate_size, 768);
  EXPECT_TRUE(config->qk_norm);
  EXPECT_EQ(config->head_dim, 128u);
  json other = Qwen3Moe();
  other.erase("norm_topk_prob");
  other.erase("mlp_only_layers");
  other.erase("decoder_sparse_step");
  EXPECT_FALSE(Read(other)->experts.weights_sum_to_one);
  // Newer tools call them as Mixtral's.
  other.erase("num_experts");
  ExpectInvalid(other, "num_local_experts", nullptr);
  other["num_local_experts"] = 64;
  EXPECT_EQ(Read(other)->experts.count, 64);
}

TEST(ModelConfigTest, Mixtral) {
  const auto config = Read(Mixtral());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, ModelFamily::kMixtral);
  EXPECT_EQ(ModelFamilyName(config->family), "mixtral");
  EXPECT_EQ(config->names, &kMixtralNames);
  EXPECT_EQ(config->experts.count, 8);
  EXPECT_EQ(config->experts.per_token, 2);
  EXPECT_TRUE(config->experts.weights_sum_to_one);
  EXPECT_EQ(config->intermediate_size, 14336);
  EXPECT_EQ(config->head_dim, 128u);
  json without = Mixtral();
  without.erase("rope_theta");
  without.erase("sliding_window");
  EXPECT_EQ(Read(without)->rope.theta, 1e6);
  ExpectUnsupported(Mixtral(), "sliding_window", 4096, "sliding window");
  json types = Mixtral();  // which it does not go by
  types["layer_types"] = std::vector<std::string>(32, "full_attention");
  ExpectUnsupported(types, "sliding_window", 4096, "sliding window");
}

TEST(ModelConfigTest, OtherNetworksThanExpertsInEachLayerAreUnsupported) {
  for (const json& base : {Qwen3Moe(), Mixtral()}) {
    ExpectUnsupported(base, "decoder_sparse_step", 2, "each layer");
    ExpectUnsupported(base, "mlp_only_layers", {0, 3}, "each layer");
    ExpectUnsupported(base, "shared_expert_intermediate_size", 512, "share");
    ExpectUnsupported(base, "n_shared_experts", 1, "share");
    ExpectInvalid(base, "num_experts_per_tok", 0);
    ExpectInvalid(base, "num_experts_per_tok", 17);
    ExpectInvalid(base, "num_experts_per_tok", nullptr);
    ExpectInvalid(base, "mlp_only_layers", "none");
  }
  ExpectInvalid(Qwen3Moe(), "num_experts", 0);
  ExpectInvalid(Qwen3Moe(), "num_experts", 257);
  ExpectInvalid(Mixtral(), "num_local_experts", nullptr);
  ExpectInvalid(Qwen3Moe(), "moe_intermediate_size", nullptr);
  json window = Qwen3Moe();  // of all layers, whatever their types and numbers
  window["sliding_window"] = 4096;
  window["layer_types"] = std::vector<std::string>(48, "full_attention");
  ExpectUnsupported(window, "use_sliding_window", true, "sliding window");
}

TEST(ModelConfigTest, TheFormOfTransformers5) {
  json llama = Llama31();
  llama["rope_parameters"] = llama["rope_scaling"];
  llama["rope_parameters"]["rope_theta"] = llama["rope_theta"];
  llama["dtype"] = "float16";
  for (const char* key : {"rope_scaling", "rope_theta", "torch_dtype"}) llama.erase(key);
  const auto config = Read(llama);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope, Read(Llama31())->rope);
  EXPECT_EQ(config->dtype, DType::kF16);
}

TEST(ModelConfigTest, DefaultsOfTransformers) {
  json llama = Llama31();
  for (const char* key :
       {"num_key_value_heads", "torch_dtype", "rms_norm_eps", "rope_scaling", "rope_theta",
        "tie_word_embeddings", "hidden_act", "eos_token_id", "model_type"}) {
    llama.erase(key);
  }
  const auto config = Read(llama);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_kv_heads, 32u);
  EXPECT_FALSE(config->dtype.has_value());
  EXPECT_FLOAT_EQ(config->rms_norm_epsilon, 1e-6f);
  EXPECT_EQ(config->rope.theta, 10000.0);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_TRUE(config->eos_token_ids.empty());
}

// As transformers 5 writes what was made without a model or a type.
TEST(ModelConfigTest, AnArchitectureAndATypeMayBeLeftOut) {
  for (const json& base : Families()) {
    json without = base;
    without["architectures"] = nullptr;
    without["torch_dtype"] = nullptr;
    const auto config = Read(without);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->family, Read(base)->family);
    EXPECT_FALSE(config->dtype.has_value());
    without["dtype"] = "auto";
    EXPECT_FALSE(Read(without)->dtype.has_value());
    without["torch_dtype"] = "bfloat16";
    EXPECT_EQ(Read(without)->dtype, DType::kBf16);
  }
  json other = Llama31();
  other.erase("architectures");
  ExpectUnsupported(other, "model_type", "gpt2", "Qwen3ForCausalLM");
}

TEST(ModelConfigTest, OtherArchitecturesAreUnsupported) {
  for (const char* name : {"MistralForSequenceClassification", "Qwen2MoeForCausalLM",
                           "GPT2LMHeadModel", "LlamaForSequenceClassification", ""}) {
    ExpectUnsupported(Llama31(), "architectures", {name}, "Qwen3ForCausalLM");
  }
  ExpectInvalid(Llama31(), "architectures", json::array());
  ExpectInvalid(Llama31(), "architectures", {"LlamaForCausalLM", "Qwen2ForCausalLM"});
  ExpectInvalid(Llama31(), "architectures", "LlamaForCausalLM");
  json nameless = Llama31();
  nameless.erase("model_type");
  ExpectInvalid(nameless, "architectures", nullptr);
  ExpectInvalid(Llama31(), "model_type", "qwen2");
}

TEST(ModelConfigTest, FeaturesThatWouldChangeTheResultAreUnsupported) {
  for (const json& base : Dense()) {
    ExpectUnsupported(base, "num_experts", 8, "mixture of experts");
    ExpectUnsupported(base, "num_local_experts", 8, "mixture of experts");
  }
  for (const json& base : Families()) {
    ExpectUnsupported(base, "quantization_config", {{"quant_method", "exl2"}}, "exl2");
    ExpectUnsupported(base, "dual_chunk_attention_config", {{"chunk_size", 262144}}, "dual chunk");
    const json own_code = {{"AutoModel", "modeling_own.OwnModel"}};
    ExpectUnsupported(base, "auto_map", own_code, "code of their own");
    const bool has_biases = Read(base)->family == ModelFamily::kSeedOss;
    ExpectUnsupported(base, has_biases ? "attention_out_bias" : "attention_bias", true);
    if (Read(base)->family != ModelFamily::kMinistral3) {
      ExpectUnsupported(base, "llama_4_scaling_beta", 0.1);
    }
    if (Read(base)->family != ModelFamily::kPhi3) {
      ExpectUnsupported(base, "partial_rotary_factor", 0.5);
    }
    ExpectUnsupported(base, "mlp_bias", true);
    ExpectUnsupported(base, "use_mrope", true);
    ExpectUnsupported(base, "hidden_act", "gelu", "silu is");
    ExpectUnsupported(base, "head_dim", 100, "64, 128 and 256");
    ExpectUnsupported(base, "head_dim", 264, "64, 128 and 256");
    ExpectUnsupported(base, "torch_dtype", "float8_e4m3fn");
    ExpectInvalid(base, "attention_bias", "yes");
    ExpectInvalid(base, "hidden_act", 7);
  }
  ExpectUnsupported(Llama31(), "num_key_value_heads", 1, "32 query heads");
}

TEST(ModelConfigTest, Granite) {
  const auto config = Read(Granite31());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, ModelFamily::kGranite);
  EXPECT_EQ(config->head_dim, 64u);
  EXPECT_FLOAT_EQ(config->attention_scale(), 0.015625f);
  EXPECT_FLOAT_EQ(config->embedding_scale(), 12.0f / 0.22f);
  EXPECT_FLOAT_EQ(config->hidden_epsilon(), 1e-5f / (0.22f * 0.22f));
  EXPECT_EQ(config->logits_divisor, 8);
  json plain = Granite31();
  for (const char* key : {"attention_multiplier", "embedding_multiplier", "logits_scaling",
                          "residual_multiplier", "num_key_value_heads"}) {
    plain.erase(key);
    ExpectInvalid(Granite31(), key, 0);
  }
  const auto defaults = Read(plain);
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(defaults->attention_scale(), 1);  // as transformers has it
  EXPECT_EQ(defaults->embedding_scale(), 1);
  EXPECT_EQ(defaults->num_kv_heads, 32u);
  ExpectUnsupported(Granite31(), "sliding_window", 4096, "sliding window");
}

TEST(ModelConfigTest, Phi) {
  const auto mini = Read(Phi4Mini());
  ASSERT_TRUE(mini.ok()) << mini.status();
  EXPECT_EQ(mini->family, ModelFamily::kPhi3);
  EXPECT_EQ(mini->head_dim, 128u);
  EXPECT_EQ(mini->rotated_dims(), 96u);
  EXPECT_EQ(mini->context_length, 131072);
  EXPECT_TRUE(mini->rope.serves_long);
  ExpectUnsupported(Phi4Mini(), "sliding_window", 131071, "sliding window");
  ExpectUnsupported(Phi4Mini(), "partial_rotary_factor", 0.01, "even number");
  json half = Phi4Mini();
  half["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(Read(half).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Read(half).status().message()),
              HasSubstr("\"rope_scaling\" has 48 factors, needs one for each of 32"));
  json phi4 = Phi4Mini();  // as Phi-4
  phi4["num_attention_heads"] = 40;
  phi4["num_key_value_heads"] = 10;
  phi4["hidden_size"] = 5120;
  for (const char* key : {"partial_rotary_factor", "rope_scaling", "sliding_window"}) {
    phi4[key] = nullptr;
  }
  ASSERT_TRUE(Read(phi4).ok()) << Read(phi4).status();
  EXPECT_EQ(Read(phi4)->rotated_dims(), 128u);
  json phi3 = Phi4Mini();  // as Phi-3-mini, whose heads have 96 numbers
  phi3["num_attention_heads"] = phi3["num_key_value_heads"] = 32;
  phi3.erase("partial_rotary_factor");
  const auto padded = Read(phi3);
  ASSERT_TRUE(padded.ok()) << padded.status();
  EXPECT_EQ(padded->head_dim, 128u);
  EXPECT_EQ(padded->own_head_dim(), 96u);
  EXPECT_EQ(padded->rotated_dims(), 96u);
  EXPECT_FLOAT_EQ(padded->attention_scale(), 1 / std::sqrt(96.0f));
  phi3["max_position_embeddings"] = 4096;
  phi3["sliding_window"] = 2047;  // as Phi-3-mini-4k
  ExpectUnsupported(phi3, "sliding_window", 2047, "sliding window");
  json without = Phi4Mini();
  without.erase("rms_norm_eps");
  EXPECT_FLOAT_EQ(Read(without)->rms_norm_epsilon, 1e-5f);
}

TEST(ModelConfigTest, Ministral3GrowsItsQueries) {
  const auto config = Read(Ministral3());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, ModelFamily::kMinistral3);
  EXPECT_EQ(config->rope.type, RopeConfig::Type::kYarn);
  EXPECT_EQ(config->rope.query_growth, 0.1);
  EXPECT_EQ(config->rope.original_positions, 16384);
  EXPECT_EQ(config->context_length, 262144);
  ExpectUnsupported(Ministral3(), "sliding_window", 4096, "sliding window");
  json missing = Ministral3();
  missing.erase("rope_parameters");
  EXPECT_EQ(Read(missing).status().code(), absl::StatusCode::kInvalidArgument);
  const json unscaled = {{"rope_type", "default"}, {"llama_4_scaling_beta", 0.1}};
  ExpectInvalid(Ministral3(), "rope_parameters", unscaled, "original_max_position_embeddings");
}

TEST(ModelConfigTest, OtherHeadsArePadded) {
  json config = Llama31();
  for (const auto& [head_dim, served] :
       {std::pair(32u, 64u), {80u, 128u}, {96u, 128u}, {192u, 256u}}) {
    config["head_dim"] = head_dim;
    const auto padded = Read(config);
    ASSERT_TRUE(padded.ok()) << padded.status();
    EXPECT_EQ(padded->head_dim, served);
    EXPECT_EQ(padded->stored_head_dim, head_dim);
    EXPECT_EQ(padded->rotated_dims(), head_dim);
  }
  EXPECT_EQ(Read(Llama31())->stored_head_dim, 0u);
  ExpectUnsupported(Qwen3(), "head_dim", 96, "has a norm");
  const json fp8 = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}};
  config["quantization_config"] = fp8;
  ExpectUnsupported(config, "head_dim", 96, "quantized");
  config["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
  ExpectUnsupported(config, "head_dim", 96, "quantized");
}

// By the time that anything asks they are numbers.
TEST(ModelConfigTest, FloatsOfFourBitsAreNoQuantization) {
  json config = Qwen3();
  config["quantization_config"] = {
      {"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"kv_cache_quant_algo", "FP8"}};
  const auto floats = Read(config);
  ASSERT_TRUE(floats.ok()) << floats.status();
  EXPECT_FALSE(floats->quantization.has_value());
  ASSERT_TRUE(floats->float4.has_value());
  EXPECT_EQ(floats->float4->name, "NVFP4");
  EXPECT_TRUE(floats->has_kv_scheme);
  config["quantization_config"]["quant_algo"] = "FP8";
  EXPECT_TRUE(Read(config)->quantization.has_value());
  EXPECT_FALSE(Read(config)->float4.has_value());
  EXPECT_TRUE(Read(config)->has_kv_scheme);
  EXPECT_FALSE(Read(Qwen3())->has_kv_scheme);
}

TEST(ModelConfigTest, ShapesOfAttention) {
  EXPECT_EQ(Read(SeedOss())->group_size(), 10u);
  json wide = Qwen3();  // as the attention of Qwen3-235B-A22B
  wide["num_attention_heads"] = 64;
  wide["num_key_value_heads"] = 4;
  EXPECT_EQ(Read(wide)->group_size(), 16u);
  for (const uint32_t head_dim : kHeadDims) {
    wide["head_dim"] = head_dim;
    EXPECT_EQ(Read(wide)->head_dim, head_dim);
  }
}

TEST(ModelConfigTest, SlidingWindowsAreUnsupportedWhereInUse) {
  for (json base : {Qwen25(), Qwen3()}) {
    base["use_sliding_window"] = true;
    base["max_window_layers"] = 28;  // no layer is beyond it
    EXPECT_TRUE(Read(base).ok());
    ExpectInvalid(base, "use_sliding_window", 1);
    base["max_window_layers"] = 21;
    ExpectUnsupported(base, "use_sliding_window", true, "sliding window");
    base.erase("max_window_layers");
    base["num_hidden_layers"] = 29;
    EXPECT_EQ(Read(base).status().code(), absl::StatusCode::kUnimplemented);
  }
  ExpectUnsupported(Llama31(), "sliding_window", 4096, "sliding window");
  json types = Qwen3();
  types["layer_types"] = std::vector<std::string>(28, "full_attention");
  EXPECT_TRUE(Read(types).ok());
  auto mixed = std::vector<std::string>(28, "full_attention");
  mixed[27] = "sliding_attention";
  ExpectUnsupported(Qwen3(), "layer_types", mixed, "full_attention");
  ExpectInvalid(Qwen3(), "layer_types", {"full_attention"}, "28 layers");
  ExpectInvalid(Qwen3(), "layer_types", {1});
}

TEST(ModelConfigTest, HostileValuesAreInvalid) {
  const std::vector<json> wrong = {nullptr,        "4", true, 1.5,   json::array(),
                                   json::object(), -1,  0,    1e300, 1LL << 62};
  for (const json& base : Families()) {
    const bool of_experts = base.contains("moe_intermediate_size");
    for (const char* key :
         {"hidden_size", of_experts ? "moe_intermediate_size" : "intermediate_size",
          "num_attention_heads", "num_hidden_layers", "vocab_size", "max_position_embeddings"}) {
      for (const json& value : wrong) ExpectInvalid(base, key, value);
      json without = base;
      without.erase(key);
      EXPECT_EQ(Read(without).status().code(), absl::StatusCode::kInvalidArgument) << key;
    }
    for (const json& value : {json(0), json(-1e-5), json("x"), json(2.0)}) {
      ExpectInvalid(base, "rms_norm_eps", value);
    }
    ExpectInvalid(base, "eos_token_id", -1);
    ExpectInvalid(base, "eos_token_id", base["vocab_size"]);
    ExpectInvalid(base, "eos_token_id", {1, "x"});
    ExpectInvalid(base, "tie_word_embeddings", "false");
    ExpectInvalid(base, "torch_dtype", 16);
    ExpectInvalid(base, "num_key_value_heads", 11);
    ExpectInvalid(base, "num_key_value_heads", 0);
    ExpectInvalid(base, "head_dim", 0);
  }
  for (json base : {Qwen25(), Qwen3(), MistralNemo(), SeedOss(), SmolLm3()}) {
    base.erase("num_key_value_heads");
    EXPECT_EQ(Read(base).status().code(), absl::StatusCode::kInvalidArgument);
  }
  ExpectInvalid(Llama31(), "hidden_size", 4097);
}

TEST(ModelConfigTest, LoadsFromAFolder) {
  test_support::TempFolder folder;
  EXPECT_EQ(LoadModelConfig(folder.path()).status().code(), absl::StatusCode::kNotFound);
  folder.Write("config.json", Llama31().dump());
  EXPECT_TRUE(LoadModelConfig(folder.path()).ok());
  folder.Write("config.json", std::string(100, '['));
  EXPECT_EQ(LoadModelConfig(folder.path()).status().code(), absl::StatusCode::kInvalidArgument);
  folder.Write("config.json", "{\"a\":\"" + std::string(100 << 20, 'x') + "\"}");
  EXPECT_EQ(LoadModelConfig(folder.path()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ModelConfigTest, LoadsEveryGoldenModel) {
  for (const auto& entry : std::filesystem::directory_iterator(std::string(RETROINFER_SOURCE_DIR) +
                                                               "/tests/golden/models")) {
    EXPECT_TRUE(LoadModelConfig(entry.path().string()).ok()) << entry.path();
  }
}

}  // namespace
}  // namespace retroinfer
