#include "gpu_worker/model/model_table.h"

#include <gtest/gtest.h>

#include "gpu_worker/model/model_shapes.h"

namespace retroinfer {
namespace {

constexpr char kLayer[] = "model.layers.1.";

std::vector<std::string> Layer(std::vector<std::string> names) {
  for (std::string& name : names) name = kLayer + name;
  return names;
}

TEST(ModelTableTest, EachTensorHasItsNameShapeAndSplit) {
  ModelConfig config = *NamedModelShape("tiny");
  config.qkv_bias = true;
  const ModelTable table(config);
  EXPECT_EQ(table.stored().size(), 3u + 2 * 12);
  struct Row {
    TensorRole role;
    std::string name;
    std::vector<int64_t> shape;
    SplitAxis split;
  };
  const Row rows[] = {
      {TensorRole::kAttentionNorm, "input_layernorm.weight", {128}, SplitAxis::kNone},
      {TensorRole::kFeedForwardNorm, "post_attention_layernorm.weight", {128}, SplitAxis::kNone},
      {TensorRole::kQuery, "self_attn.q_proj.weight", {256, 128}, SplitAxis::kRows},
      {TensorRole::kKey, "self_attn.k_proj.weight", {128, 128}, SplitAxis::kKvRows},
      {TensorRole::kValue, "self_attn.v_proj.weight", {128, 128}, SplitAxis::kKvRows},
      {TensorRole::kQueryBias, "self_attn.q_proj.bias", {256}, SplitAxis::kRows},
      {TensorRole::kKeyBias, "self_attn.k_proj.bias", {128}, SplitAxis::kKvRows},
      {TensorRole::kAttentionOutput, "self_attn.o_proj.weight", {128, 256}, SplitAxis::kColumns},
      {TensorRole::kGate, "mlp.gate_proj.weight", {256, 128}, SplitAxis::kRows},
      {TensorRole::kDown, "mlp.down_proj.weight", {128, 256}, SplitAxis::kColumns}};
  for (const Row& row : rows) {
    const TensorSpec& spec = table.Get(row.role, 1);
    EXPECT_EQ(spec.stored, kLayer + row.name);
    EXPECT_EQ(spec.shape, row.shape) << row.name;
    EXPECT_EQ(spec.split, row.split) << row.name;
    EXPECT_EQ(spec.may_be_rounded, spec.shape.size() == 2) << row.name;
    EXPECT_EQ(spec.first_row, 0) << row.name;
    EXPECT_EQ(table.stored().at(spec.stored).shape, row.shape);
  }
  EXPECT_EQ(table.Find(TensorRole::kQueryNorm, 0), nullptr);
  EXPECT_EQ(table.Find(TensorRole::kQuery, 2), nullptr);
}

TEST(ModelTableTest, ExpertsLieOneBelowTheOther) {
  ModelConfig config = *NamedModelShape("tiny-experts");
  config.experts.count = 3;
  const ModelTable table(config);
  EXPECT_EQ(table.layers()[1].feed_forward, FeedForwardKind::kExperts);
  EXPECT_EQ(table.stored().size(), 3u + 2 * (8 + 1 + 3 * 3));
  EXPECT_EQ(table.Find(TensorRole::kGate, 1), nullptr);
  const TensorSpec& up = table.Get(TensorRole::kExpertUp, 1, 2);
  EXPECT_EQ(up.stored, "model.layers.1.mlp.experts.2.up_proj.weight");
  EXPECT_EQ(up.shape, (std::vector<int64_t>{64, 128}));
  EXPECT_TRUE(up.may_be_rounded && up.may_be_coded);
  EXPECT_EQ(up.split, SplitAxis::kRows);
  EXPECT_EQ(table.Find(TensorRole::kExpertUp, 1), nullptr);
  EXPECT_EQ(table.Find(TensorRole::kExpertUp, 1, 3), nullptr);
  const TensorSpec& router = table.Get(TensorRole::kRouter, 1);
  EXPECT_EQ(router.stored, "model.layers.1.mlp.gate.weight");
  EXPECT_EQ(router.shape, (std::vector<int64_t>{3, 128}));
  EXPECT_FALSE(router.may_be_rounded);

  const ProjectionSpec gate_up = table.Of(Projection::kGateUp, 1);
  EXPECT_EQ(gate_up.weights,
            Layer({"mlp.experts.0.gate_proj.weight", "mlp.experts.0.up_proj.weight",
                   "mlp.experts.1.gate_proj.weight", "mlp.experts.1.up_proj.weight",
                   "mlp.experts.2.gate_proj.weight", "mlp.experts.2.up_proj.weight"}));
  EXPECT_EQ(gate_up.out_features, 3 * 2 * 64);
  EXPECT_EQ(gate_up.num_parts, 6);
  const ProjectionSpec down = table.Of(Projection::kDown, 1);
  EXPECT_EQ(down.weights.size(), 3u);
  EXPECT_EQ(down.in_features, 64);
  EXPECT_EQ(down.num_parts, 3);
  EXPECT_EQ(table.Of(Projection::kQkv, 1).num_parts, 1);
  EXPECT_EQ(ProjectionsOf(table.layers()[1]).size(), 5u);

  config.names = &kMixtralNames;
  config.qk_norm = false;
  const ModelTable mixtral(config);
  EXPECT_EQ(mixtral.Get(TensorRole::kExpertUp, 0, 1).stored,
            "model.layers.0.block_sparse_moe.experts.1.w3.weight");
  EXPECT_EQ(mixtral.Get(TensorRole::kExpertDown, 0, 1).stored,
            "model.layers.0.block_sparse_moe.experts.1.w2.weight");
}

// What the embedding is: nothing rounds it, and no checkpoint may store it as codes.
TEST(ModelTableTest, OnlyMatricesOfLayersAreRounded) {
  const ModelTable table(*NamedModelShape("tiny"));
  const TensorSpec& embedding = table.Get(TensorRole::kEmbedding);
  EXPECT_FALSE(embedding.may_be_coded || embedding.may_be_rounded);
  const TensorSpec& output = table.Get(TensorRole::kOutput);
  EXPECT_TRUE(output.may_be_coded && !output.may_be_rounded);
}

TEST(ModelTableTest, ProjectionsAreStoredTensorsOneBelowTheOther) {
  ModelConfig config = *NamedModelShape("tiny");
  config.qkv_bias = true;
  const ModelTable table(config);
  const ProjectionSpec qkv = table.Of(Projection::kQkv, 1);
  EXPECT_EQ(qkv.in_features, 128);
  EXPECT_EQ(qkv.out_features, 512);
  EXPECT_EQ(qkv.weights, Layer({"self_attn.q_proj.weight", "self_attn.k_proj.weight",
                                "self_attn.v_proj.weight"}));
  EXPECT_EQ(qkv.biases,
            Layer({"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"}));
  const ProjectionSpec gate_up = table.Of(Projection::kGateUp, 1);
  EXPECT_EQ(gate_up.weights, Layer({"mlp.gate_proj.weight", "mlp.up_proj.weight"}));
  EXPECT_TRUE(gate_up.biases.empty());
  EXPECT_EQ(table.Of(Projection::kOutput).weights, std::vector<std::string>{"lm_head.weight"});
}

TEST(ModelTableTest, ATiedOutputIsTheEmbedding) {
  ModelConfig config = *NamedModelShape("tiny");
  EXPECT_FALSE(ModelTable(config).HasNoEffect("lm_head.weight"));
  config.tie_word_embeddings = true;
  const ModelTable table(config);
  EXPECT_EQ(table.Get(TensorRole::kOutput).stored, "model.embed_tokens.weight");
  EXPECT_EQ(table.Of(Projection::kOutput).out_features, 512);
  EXPECT_EQ(table.stored().count("lm_head.weight"), 0u);
  EXPECT_TRUE(table.HasNoEffect("lm_head.weight"));
  EXPECT_EQ(table.stored().at("model.embed_tokens.weight").parts.size(), 1u);
}

TEST(ModelTableTest, LayersSayWhatTheyAre) {
  ModelConfig config = *NamedModelShape("tiny");
  config.qk_norm = true;
  config.layers_without_rope = {1};
  const ModelTable table(config);
  ASSERT_EQ(table.layers().size(), 2u);
  EXPECT_TRUE(table.layers()[0].rope && table.layers()[0].qk_norm);
  EXPECT_FALSE(table.layers()[1].rope);
  EXPECT_EQ(table.Get(TensorRole::kKeyNorm, 0).shape, std::vector<int64_t>{64});
  EXPECT_EQ(table.layers()[1].feed_forward, FeedForwardKind::kDense);
}

// A family that fuses what is multiplied as one.
TEST(ModelTableTest, RolesOfOneNameArePartsOfOneTensor) {
  static constexpr TensorName kFused[] = {{TensorRole::kAttentionNorm, "norm1"},
                                          {TensorRole::kFeedForwardNorm, "norm2"},
                                          {TensorRole::kQuery, "qkv"},
                                          {TensorRole::kKey, "qkv"},
                                          {TensorRole::kValue, "qkv"},
                                          {TensorRole::kAttentionOutput, "out"},
                                          {TensorRole::kGate, "gate_up"},
                                          {TensorRole::kUp, "gate_up"},
                                          {TensorRole::kDown, "down"}};
  static constexpr TensorNames kNames = {.of_model = kLlamaModelTensors,
                                         .layer_prefix = "h.",
                                         .of_layer = kFused,
                                         .without_effect = {}};
  ModelConfig config = *NamedModelShape("tiny");
  config.names = &kNames;
  const ModelTable table(config);
  EXPECT_EQ(table.stored().size(), 3u + 2 * 6);
  EXPECT_EQ(table.stored().at("h.0.qkv").shape, (std::vector<int64_t>{512, 128}));
  EXPECT_EQ(table.Get(TensorRole::kQuery, 0).first_row, 0);
  EXPECT_EQ(table.Get(TensorRole::kKey, 0).first_row, 256);
  EXPECT_EQ(table.Get(TensorRole::kValue, 0).first_row, 384);
  EXPECT_EQ(table.Get(TensorRole::kUp, 1).first_row, 256);
  EXPECT_EQ(table.Of(Projection::kQkv, 0).weights, std::vector<std::string>{"h.0.qkv"});
  EXPECT_EQ(table.Of(Projection::kQkv, 0).out_features, 512);
  EXPECT_EQ(table.Of(Projection::kGateUp, 1).weights, std::vector<std::string>{"h.1.gate_up"});
}

// Loading takes whole tensors: names that would need a part of one alone are an error of the code.
TEST(ModelTableDeathTest, WhatIsMultipliedApartMayNotShareATensor) {
  static constexpr TensorName kMixed[] = {
      {TensorRole::kQuery, "all"},          {TensorRole::kKey, "all"}, {TensorRole::kValue, "all"},
      {TensorRole::kGate, "all"},           {TensorRole::kUp, "all"},  {TensorRole::kDown, "down"},
      {TensorRole::kAttentionOutput, "out"}};
  static constexpr TensorNames kNames = {.of_model = kLlamaModelTensors,
                                         .layer_prefix = "h.",
                                         .of_layer = kMixed,
                                         .without_effect = {}};
  ModelConfig config = *NamedModelShape("tiny");
  config.names = &kNames;
  EXPECT_DEATH(ModelTable table(config), "out_features");
}

}  // namespace
}  // namespace retroinfer
