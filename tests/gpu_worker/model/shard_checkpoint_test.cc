// What each rank's part holds, of numbers and of codes; what models make of parts is in
// sharded_transformer_test.cc.
#include "gpu_worker/model/shard_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu_worker/model/model_weights.h"
#include "gpu_worker/model/shard_config.h"
#include "tests/gpu_worker/model/golden_model.h"

namespace retroinfer {
namespace {

using test_support::GoldenModel;
using ::testing::HasSubstr;

std::vector<std::byte> BytesOf(const HostTensor& tensor) {
  std::vector<std::byte> memory;
  const auto bytes = tensor.Bytes(0, tensor.num_bytes(), memory);
  return {bytes.begin(), bytes.end()};
}

struct Part {
  ModelConfig config;
  Checkpoint checkpoint;
};
absl::StatusOr<Part> PartOf(const GoldenModel& golden, const TensorParallel& parallel) {
  ASSIGN_OR_RETURN(ModelConfig config, ShardConfig(golden.config, parallel));
  ASSIGN_OR_RETURN(Checkpoint checkpoint,
                   ShardCheckpoint(golden.config, config, golden.checkpoint));
  return Part{std::move(config), std::move(checkpoint)};
}

TEST(ShardCheckpointTest, PartsAreCheckpointsOfRanks) {
  for (const char* const name : {"llama-d128-tied-f16", "gptoss-d64-mxfp4", "llama-int4-ct-group",
                                 "llama-int4-awq", "llama-int4-gptq", "qwen2-fp8-ct-static"}) {
    const GoldenModel golden(name);
    for (const int rank : {0, 1}) {
      const auto part = PartOf(golden, {rank, 2});
      ASSERT_TRUE(part.ok()) << part.status();
      EXPECT_TRUE(CheckTensors(part->config, part->checkpoint).ok())
          << name << ": " << CheckTensors(part->config, part->checkpoint);
      EXPECT_LT(part->checkpoint.total_bytes(), golden.checkpoint.total_bytes());
    }
  }
}

TEST(ShardCheckpointTest, RowsOfRanksMakeTheWhole) {
  const GoldenModel golden("llama-d128-tied-f16");  // two KV heads
  for (const char* const matrix : {"self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj"}) {
    const std::string name = std::string("model.layers.1.") + matrix + ".weight";
    std::vector<std::byte> all;
    for (const int rank : {0, 1}) {
      const auto part = PartOf(golden, {rank, 2});
      ASSERT_TRUE(part.ok()) << part.status();
      const auto bytes = BytesOf(part->checkpoint.tensors().at(name));
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    EXPECT_TRUE(all == BytesOf(golden.checkpoint.tensors().at(name))) << name;
  }
}

TEST(ShardCheckpointTest, ColumnsOfRanksLieSideBySide) {
  const GoldenModel golden("llama-d128-tied-f16");
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  const HostTensor& whole = golden.checkpoint.tensors().at(name);
  const auto all = BytesOf(whole);
  for (const int rank : {0, 1}) {
    const auto part = PartOf(golden, {rank, 2});
    ASSERT_TRUE(part.ok()) << part.status();
    const HostTensor& tensor = part->checkpoint.tensors().at(name);
    const Share features = part->config.shard->features;
    ASSERT_EQ(tensor.shape, (std::vector<int64_t>{whole.shape[0], features.count}));
    const auto bytes = BytesOf(tensor);
    for (int64_t row = 0; row < whole.shape[0]; ++row) {
      const auto want = all.begin() + 2 * (row * whole.shape[1] + features.first);
      EXPECT_TRUE(
          std::equal(want, want + 2 * features.count, bytes.begin() + 2 * row * features.count))
          << row;
    }
  }
}

TEST(ShardCheckpointTest, KvHeadsAreSharedWhereThereAreFewer) {
  const GoldenModel golden("llama-d64-untied-bf16");  // one
  const std::string name = "model.layers.0.self_attn.v_proj.weight";
  for (const int rank : {0, 3}) {
    const auto part = PartOf(golden, {rank, 4});
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_TRUE(BytesOf(part->checkpoint.tensors().at(name)) ==
                BytesOf(golden.checkpoint.tensors().at(name)));
  }
}

TEST(ShardCheckpointTest, WhatIsAddedOnceIsTheFirstRanks) {
  const GoldenModel golden("gptoss-d64-mxfp4");
  const std::string name = "model.layers.0.self_attn.o_proj.bias";
  const auto first = PartOf(golden, {0, 2});
  const auto second = PartOf(golden, {1, 2});
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  const auto all = BytesOf(golden.checkpoint.tensors().at(name));
  EXPECT_TRUE(BytesOf(first->checkpoint.tensors().at(name)) == all);
  EXPECT_TRUE(BytesOf(second->checkpoint.tensors().at(name)) == std::vector<std::byte>(all.size()));
  EXPECT_FALSE(all == std::vector<std::byte>(all.size()));
}

TEST(ShardCheckpointTest, ScalesAreNotSplit) {
  const GoldenModel golden("qwen3-fp8-block");
  auto config = ShardConfig(golden.config, {0, 2});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(ShardCheckpoint(golden.config, *config, golden.checkpoint).ok());
  config->shard->features = {0, 100};
  const auto part = ShardCheckpoint(golden.config, *config, golden.checkpoint);
  ASSERT_EQ(part.status().code(), absl::StatusCode::kUnimplemented) << part.status();
  EXPECT_THAT(std::string(part.status().message()), HasSubstr("down_proj"));
  EXPECT_THAT(std::string(part.status().message()), HasSubstr("an element for 128 input features"));
}

}  // namespace
}  // namespace retroinfer
