#include "gpu_worker/model/shard_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu_worker/model/model_shapes.h"

namespace retroinfer {
namespace {

using ::testing::HasSubstr;

// 32 query heads, 8 KV heads.
ModelConfig Whole() { return *NamedModelShape("llama-3-8b"); }

void ExpectRefused(const ModelConfig& whole, int num_ranks, const std::string& part) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    const absl::Status status = ShardConfig(whole, {rank, num_ranks}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

TEST(ShardConfigTest, OneRankHasTheModel) {
  const auto config = ShardConfig(Whole(), {});
  ASSERT_TRUE(config.ok());
  EXPECT_FALSE(config->shard.has_value());
  EXPECT_EQ(config->num_outputs(), Whole().vocab_size);
}

TEST(ShardConfigTest, RanksShareHeadsFeaturesAndOutputs) {
  const ModelConfig whole = Whole();
  for (const int num_ranks : {2, 4, 8, 16, 32}) {
    int64_t features = 0;
    int64_t outputs = 0;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const auto config = ShardConfig(whole, {rank, num_ranks});
      ASSERT_TRUE(config.ok()) << config.status();
      const ModelShard& shard = *config->shard;
      EXPECT_EQ(config->num_query_heads, whole.num_query_heads / static_cast<uint32_t>(num_ranks));
      EXPECT_EQ(shard.features.first, features);
      EXPECT_EQ(shard.outputs.first, outputs);
      features += config->intermediate_size;
      outputs += config->num_outputs();
      EXPECT_EQ(config->num_kv_heads, shard.kv_heads.count);
      EXPECT_EQ(shard.kv_heads.total, whole.num_kv_heads);
      // Each query head's KV head is the rank's.
      for (int64_t i = 0; i < shard.query_heads.count; ++i) {
        const int64_t of_model = (shard.query_heads.first + i) / whole.group_size();
        EXPECT_EQ(of_model, shard.kv_heads.first + i / config->group_size());
      }
      // What all have.
      EXPECT_EQ(config->vocab_size, whole.vocab_size);
      EXPECT_EQ(config->hidden_size, whole.hidden_size);
    }
    EXPECT_EQ(features, whole.intermediate_size);
    EXPECT_EQ(outputs, whole.vocab_size);
  }
}

TEST(ShardConfigTest, TablesOfRanksHaveTheirShapes) {
  const auto config = ShardConfig(Whole(), {1, 16});
  ASSERT_TRUE(config.ok()) << config.status();
  const ModelTable table(*config);
  const auto shape = [&](TensorRole role) { return table.Get(role, 0).shape; };
  EXPECT_EQ(shape(TensorRole::kQuery), (std::vector<int64_t>{256, 4096}));
  EXPECT_EQ(shape(TensorRole::kKey), (std::vector<int64_t>{128, 4096}));
  EXPECT_EQ(shape(TensorRole::kAttentionOutput), (std::vector<int64_t>{4096, 256}));
  EXPECT_EQ(shape(TensorRole::kDown), (std::vector<int64_t>{4096, 896}));
  EXPECT_EQ(table.Get(TensorRole::kEmbedding).shape[0], Whole().vocab_size);
  EXPECT_EQ(table.Get(TensorRole::kOutput).shape[0], config->num_outputs());
}

TEST(ShardConfigTest, WhatDoesNotGoIntoRanksIsRefused) {
  ExpectRefused(Whole(), 3, "it has 32 query heads and ");
  ModelConfig config = Whole();
  config.num_query_heads = 24;
  config.num_kv_heads = 4;
  ExpectRefused(
      config, 6,
      "24 query heads and 4 KV heads; ranks divide the former, and divide or multiply the "
      "latter: use 1, 2, 4, 8");
  config = Whole();
  config.intermediate_size = 8;
  ExpectRefused(config, 2, "8 features in units of 8; at most 1 ranks");
  config = Whole();
  config.vocab_size = 33;
  ExpectRefused(config, 4, "33 tokens in units of 16; at most 3 ranks");
  EXPECT_EQ(ShardConfig(Whole(), {2, 2}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ShardConfig(Whole(), {0, 0}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ShardConfigTest, FeaturesThatShareAScaleStayTogether) {
  ModelConfig config = Whole();
  EXPECT_EQ(FeatureUnit(config), 8);
  config.quantization = WeightQuantization{.form = kFp8OfBlocks, .method = "fp8"};
  EXPECT_EQ(FeatureUnit(config), 128);
  config.quantization->form = StoredInt4(64, true);
  EXPECT_EQ(FeatureUnit(config), 64);
  config.quantization->form = kFp8OfFeatures;
  EXPECT_EQ(FeatureUnit(config), 8);
}

}  // namespace
}  // namespace retroinfer
