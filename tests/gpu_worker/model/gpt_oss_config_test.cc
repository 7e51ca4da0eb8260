#include "gpu_worker/model/gpt_oss_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace retroinfer {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// As its makers published it, without keys that have no effect.
json GptOss20B() {
  json config = json::parse(R"({"architectures": ["GptOssForCausalLM"], "attention_bias": true,
    "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880,
    "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64,
    "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
    "num_local_experts": 32, "quantization_config": {"modules_to_not_convert": ["lm_head"],
      "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
      "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
    "tie_word_embeddings": false, "vocab_size": 201088})");
  for (int layer = 0; layer < 24; ++layer) {
    config["layer_types"].push_back(layer % 2 == 0 ? "sliding_attention" : "full_attention");
  }
  return config;
}

absl::StatusOr<ModelConfig> Read(const json& config) {
  const auto reader = common::JsonReader::ParseObject(config.dump(), "config.json");
  if (!reader.ok()) return reader.status();
  return ReadModelConfig(*reader);
}

TEST(GptOssConfigTest, TheModelOfTwentyBillion) {
  const auto model = Read(GptOss20B());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->family, ModelFamily::kGptOss);
  EXPECT_EQ(model->experts.count, 32);
  EXPECT_EQ(model->experts.per_token, 4);
  EXPECT_TRUE(model->experts.weights_sum_to_one);  // of the chosen ones' scores alone
  EXPECT_TRUE(model->qkv_bias && model->output_bias && model->expert_biases && model->sinks);
  EXPECT_EQ(model->activation, GatedActivation::kClampedSwiglu);
  EXPECT_EQ(model->group_size(), 8u);
  EXPECT_EQ(model->window_of(0), 128);
  EXPECT_EQ(model->window_of(1), 0);
  EXPECT_FALSE(model->window_rope.has_value());
  EXPECT_EQ(model->rope.type, RopeConfig::Type::kYarn);
  EXPECT_FALSE(model->rope.truncate);
  EXPECT_EQ(model->context_length, 131'072);
  EXPECT_FALSE(model->quantization.has_value());  // experts are numbers when they are loaded
  const KvGeometry geometry = model->geometry(kBf16Kv);
  EXPECT_EQ(geometry.num_layers, 12u);
  EXPECT_EQ(geometry.num_window_layers, 12u);
}

TEST(GptOssConfigTest, WhatWouldChangeTheResultIsRefused) {
  const auto refused = [](const json& changes, const std::string& part) {
    json config = GptOss20B();
    config.update(changes);
    const auto model = Read(config);
    ASSERT_FALSE(model.ok()) << changes;
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(part));
  };
  refused({{"swiglu_limit", 10.0}}, "swiglu_limit");
  refused({{"swiglu_alpha", 1.0}}, "swiglu_alpha");
  refused({{"attention_bias", false}}, "without biases");
  refused({{"quantization_config", nullptr}}, "MXFP4");
  refused({{"quantization_config", {{"quant_method", "awq"}}}}, "awq is not supported here");
  refused({{"rope_scaling", nullptr}}, "rope_scaling");
  refused({{"hidden_act", "gelu"}}, "hidden_act");
  refused({{"num_local_experts", 0}}, "num_local_experts");
}

}  // namespace
}  // namespace retroinfer
