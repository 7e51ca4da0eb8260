#include "gpu_worker/model/gemma3_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "gpu_worker/model/model_table.h"

namespace retroinfer {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As the makers published them, without keys that have no effect.
json Gemma3Of1B() {
  return json::parse(R"({"architectures": ["Gemma3ForCausalLM"], "attention_bias": false,
    "attn_logit_softcapping": null, "bos_token_id": 2, "cache_implementation": "hybrid",
    "eos_token_id": [1, 106], "final_logit_softcapping": null, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
    "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
    "num_hidden_layers": 26, "num_key_value_heads": 1, "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": null,
    "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16", "vocab_size": 262144})");
}
json Gemma3Of4B() {
  return json::parse(R"({"architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255999, "eoi_token_index": 256000, "eos_token_id": [1, 106],
    "image_token_index": 262144, "mm_tokens_per_image": 256, "model_type": "gemma3",
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
      "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
      "sliding_window": 1024},
    "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152, "image_size": 896}})");
}

absl::StatusOr<ModelConfig> Read(const json& config) {
  const auto reader = common::JsonReader::ParseObject(config.dump(), "config.json");
  if (!reader.ok()) return reader.status();
  return ReadModelConfig(*reader);
}

void ExpectRefused(const json& changes, const std::string& part) {
  json config = Gemma3Of1B();
  config.update(changes);
  const auto model = Read(config);
  ASSERT_FALSE(model.ok()) << changes;
  EXPECT_THAT(std::string(model.status().message()), HasSubstr(part));
}

TEST(Gemma3ConfigTest, TheModelOfOneBillion) {
  const auto model = Read(Gemma3Of1B());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->family, ModelFamily::kGemma3);
  EXPECT_EQ(model->names, &kGemma3Names);
  ASSERT_EQ(model->layer_windows.size(), 26u);
  for (uint32_t layer = 0; layer < 26; ++layer) {
    EXPECT_EQ(model->window_of(layer), layer % 6 == 5 ? 0 : 512) << layer;
  }
  EXPECT_EQ(model->rope, RopeConfig{.theta = 1e6});
  EXPECT_EQ(*model->window_rope, RopeConfig{.theta = 1e4});
  EXPECT_EQ(model->attention_scale(), 1.0f / 16);
  EXPECT_EQ(model->embedding_scale(), 34.0f);  // 33.94 as bf16 has it
  EXPECT_EQ(model->norm_offset, 1);
  EXPECT_TRUE(model->post_norms && model->qk_norm && model->tie_word_embeddings);
  EXPECT_EQ(model->activation, GatedActivation::kGeluTanh);
  EXPECT_EQ(model->context_length, 32768);
  EXPECT_THAT(model->eos_token_ids, ElementsAre(1, 106));
  const KvGeometry geometry = model->geometry(kBf16Kv);
  EXPECT_EQ(geometry.num_layers, 4u);
  EXPECT_EQ(geometry.num_window_layers, 22u);
  EXPECT_EQ(geometry.window_tokens, 512u);
}

// What the text part leaves out is what transformers takes; positions are those behind the scaling.
TEST(Gemma3ConfigTest, TheTextPartOfAModelThatSeesImages) {
  const auto model = Read(Gemma3Of4B());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->names, &kGemma3TextNames);
  EXPECT_EQ(model->num_query_heads, 8u);
  EXPECT_EQ(model->num_kv_heads, 4u);
  EXPECT_EQ(model->head_dim, 256u);
  EXPECT_EQ(model->vocab_size, 262208);
  EXPECT_EQ(model->rope.type, RopeConfig::Type::kLinear);
  EXPECT_EQ(model->rope.factor, 8);
  EXPECT_EQ(model->window_rope->type, RopeConfig::Type::kDefault);
  EXPECT_EQ(model->context_length, 131'072);
  EXPECT_EQ(model->dtype, DType::kBf16);
  EXPECT_THAT(model->eos_token_ids, ElementsAre(1, 106));
  const ModelTable table(*model);
  EXPECT_TRUE(table.stored().contains("language_model.model.layers.33.mlp.up_proj.weight"));
  EXPECT_TRUE(table.IsOtherPart("vision_tower.vision_model.post_layernorm.weight"));
  EXPECT_TRUE(table.HasNoEffect("multi_modal_projector.mm_soft_emb_norm.weight"));
  EXPECT_FALSE(table.IsOtherPart("language_model.model.norm.weight"));
}

TEST(Gemma3ConfigTest, TheScaleOfEmbeddingsIsRoundedAsTheModelIsComputed) {
  json config = Gemma3Of1B();
  for (const auto& [dtype, scale] : {std::pair("bfloat16", 34.0f), std::pair("float16", 33.9375f),
                                     std::pair("float32", std::sqrt(1152.0f))}) {
    config["torch_dtype"] = dtype;
    EXPECT_EQ(Read(config)->embedding_scale(), scale) << dtype;
  }
}

TEST(Gemma3ConfigTest, LayerTypesAndRopesAsTransformers5WritesThem) {
  json config = Gemma3Of1B();
  for (const char* key : {"rope_theta", "rope_local_base_freq", "rope_scaling"}) config.erase(key);
  config["num_hidden_layers"] = 3;
  config["layer_types"] = {"full_attention", "sliding_attention", "sliding_attention"};
  config["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 5e5}}},
      {"sliding_attention", {{"rope_type", "default"}}}};
  auto model = Read(config);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->layer_windows, ElementsAre(0, 512, 512));
  EXPECT_EQ(model->rope.factor, 4);
  EXPECT_EQ(model->rope.theta, 5e5);
  EXPECT_EQ(model->window_rope->theta, 1e4);
  EXPECT_EQ(ModelTable(*model).layers()[1].window_rope, true);
  EXPECT_EQ(ModelTable(*model).layers()[0].window_rope, false);
  config["layer_types"] = {"full_attention", "full_attention", "full_attention"};
  model = Read(config);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(model->layer_windows.empty());
  EXPECT_FALSE(model->window_rope.has_value());
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  EXPECT_THAT(std::string(Read(config).status().message()), HasSubstr("remove one of them"));
}

TEST(Gemma3ConfigTest, WhatWouldChangeTheResultIsRefused) {
  ExpectRefused({{"attn_logit_softcapping", 50.0}}, "attn_logit_softcapping");
  ExpectRefused({{"final_logit_softcapping", 30.0}}, "soft caps");
  ExpectRefused({{"hidden_activation", "gelu"}}, "gelu is not supported");
  ExpectRefused({{"use_bidirectional_attention", true}}, "later tokens");
  ExpectRefused({{"attention_bias", true}}, "attention_bias");
  ExpectRefused({{"sliding_window", 0}}, "sliding_window");
  ExpectRefused({{"sliding_window", 100'000}}, "sliding_window");
  ExpectRefused({{"layer_types", {"full_attention"}}}, "1 entries for 26");
  ExpectRefused({{"num_hidden_layers", 1}, {"layer_types", {"chunked_attention"}}}, "chunked");
  ExpectRefused({{"num_hidden_layers", 5}}, "without a layer of full attention");
  ExpectRefused({{"query_pre_attn_scalar", 0}}, "query_pre_attn_scalar");
  ExpectRefused({{"rope_parameters", {{"rope_theta", 1e6}}}}, "full_attention");
  json config = Gemma3Of4B();
  config.erase("text_config");
  EXPECT_THAT(std::string(Read(config).status().message()), HasSubstr("text_config"));
}

}  // namespace
}  // namespace retroinfer
