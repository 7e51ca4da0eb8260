// A model that ranks share gives what one rank gives: golden models of all kinds of tensors and
// weights, with as many ranks as they go into.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "gpu_worker/model/gguf/gguf_model.h"
#include "gpu_worker/model/model_shapes.h"
#include "gpu_worker/model/shard_config.h"
#include "gpu_worker/model/transformer.h"
#include "tests/gpu_worker/model/dense_sequences.h"
#include "tests/gpu_worker/model/gguf/golden_gguf.h"
#include "tests/gpu_worker/model/golden_model.h"
#include "tests/support/device_data.h"
#include "tests/support/rank_threads.h"

namespace retroinfer {
namespace {

using test_support::Backend;
using test_support::DenseSequences;
using test_support::DeviceData;
using test_support::GoldenModel;
using test_support::NormError;
using test_support::RankThreads;
using ::testing::HasSubstr;

constexpr int64_t kSteps = 6;

// One rank's pass over a prompt, then decode steps, as the engine drives them.
class RankRun {
 public:
  RankRun(Backend& backend, Transformer& model, int64_t capacity)
      : backend_(backend),
        model_(model),
        data_(backend),
        dense_(backend, model.config(), kF32Kv, 1, capacity),
        capacity_(capacity) {}

  // Logits of the prompt's rows `rows`, then those of a step for each of `forced`.
  absl::StatusOr<std::vector<float>> Logits(const std::vector<int32_t>& prompt,
                                            const std::vector<int64_t>& rows,
                                            std::span<const int32_t> forced) {
    const auto total = static_cast<int64_t>(prompt.size());
    const ModelConfig& config = model_.config();
    const DeviceData::Matrix hidden = data_.Poisoned(total, config.hidden_size);
    const DeviceBuffer tokens = data_.Upload(prompt);
    RETURN_IF_ERROR(model_.Embed(*backend_.stream, tokens.as<const int32_t>(), hidden.view));
    for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
      const LayerKv kv = NewLayerKv();
      for (int64_t first = 0; first < total; first += kChunk) {
        const int64_t count = std::min(kChunk, total - first);
        RETURN_IF_ERROR(model_.PrefillLayer(*backend_.stream, layer, hidden.view.Rows(first, count),
                                            first, kv, count));
      }
      RETURN_IF_ERROR(dense_.Fill(0, layer, kv, total));
    }
    for (const int64_t row : rows) {
      const DeviceData::Matrix logits = NewLogits();
      RETURN_IF_ERROR(model_.Logits(*backend_.stream, hidden.view.Rows(row, 1), logits.view));
      Keep(logits);
    }
    for (const int32_t token : forced) RETURN_IF_ERROR(Decode(token));
    return logits_;
  }

 private:
  static constexpr int64_t kChunk = 40;

  LayerKv NewLayerKv() {
    const KvGeometry geometry = model_.config().geometry(kF32Kv);
    const size_t bytes =
        static_cast<size_t>(capacity_) * geometry.num_kv_heads * geometry.prompt_vector_bytes();
    kv_ = data_.Upload(std::vector<float>(2 * bytes / sizeof(float), test_support::kNan));
    return {.keys = kv_.bytes().device_data(),
            .values = kv_.bytes().device_data() + bytes,
            .num_kv_heads = geometry.num_kv_heads,
            .head_dim = geometry.head_dim,
            .capacity = capacity_,
            .dtype = geometry.format.prompt};
  }
  DeviceData::Matrix NewLogits() {
    const int64_t vocab = model_.config().vocab_size;
    return data_.UploadMatrix(std::vector<float>(static_cast<size_t>(vocab), test_support::kNan), 1,
                              vocab, DType::kF32);
  }
  void Keep(const DeviceData::Matrix& logits) {
    const std::vector<float> values = data_.Values(logits);
    logits_.insert(logits_.end(), values.begin(), values.end());
  }
  absl::Status Decode(int32_t token) {
    const std::vector<int32_t> positions = {static_cast<int32_t>(dense_.length(0))};
    dense_.BeginStep(std::vector<int>{0});
    const DeviceBuffer token_ids = data_.Upload(std::vector<int32_t>{token});
    const DeviceBuffer device_positions = data_.Upload(positions);
    const DeviceData::Matrix logits = NewLogits();
    RETURN_IF_ERROR(model_.Decode(
        *backend_.stream, token_ids.as<const int32_t>(), device_positions.as<const int32_t>(),
        [&](uint32_t layer, const MatrixView& queries, const MatrixView& keys,
            const MatrixView& values, const MatrixView& out) {
          return dense_.Attend(layer, model_.AttentionOf(layer), queries, keys, values, out);
        },
        logits.view));
    Keep(logits);
    return absl::OkStatus();
  }

  Backend& backend_;
  Transformer& model_;
  DeviceData data_;
  DenseSequences dense_;
  const int64_t capacity_;
  DeviceBuffer kv_;
  std::vector<float> logits_;
};

TransformerOptions OptionsOf(const RankThreads& ranks, int rank) {
  return {.max_prefill_rows = 64, .max_decode_rows = 2, .parallel = {rank, ranks.num_ranks()}};
}

// The logits of each rank.
using RankLogits = std::vector<absl::StatusOr<std::vector<float>>>;
RankLogits LogitsOfRanks(const ModelConfig& config, const Checkpoint& checkpoint, int num_ranks,
                         const std::vector<int32_t>& prompt, const std::vector<int64_t>& rows,
                         std::span<const int32_t> forced) {
  RankThreads ranks(num_ranks);
  RankLogits logits(static_cast<size_t>(num_ranks), absl::UnknownError("no result"));
  ranks.Run([&](int rank) {
    Backend& backend = ranks.backend(rank);
    auto model = Transformer::Load(*backend.device, *backend.ops, config, checkpoint,
                                   OptionsOf(ranks, rank));
    auto& result = logits[static_cast<size_t>(rank)];
    if (!model.ok()) {
      result = model.status();
      ranks.memory(rank).End();
      return;
    }
    result = RankRun(backend, **model, 200).Logits(prompt, rows, forced);
  });
  return logits;
}
RankLogits LogitsOfRanks(const GoldenModel& golden, int num_ranks) {
  return LogitsOfRanks(golden.config, golden.checkpoint, num_ranks, golden.prompt,
                       golden.prefill_positions, std::span(golden.forced).first(kSteps));
}

struct Sharing {
  std::string model;
  int num_ranks = 2;
};
void PrintTo(const Sharing& sharing, std::ostream* out) {
  *out << sharing.model << " over " << sharing.num_ranks;
}

class ShardedTransformerTest : public ::testing::TestWithParam<Sharing> {};

TEST_P(ShardedTransformerTest, RanksTogetherEqualHuggingFace) {
  const GoldenModel golden(GetParam().model);
  const auto ranks = LogitsOfRanks(golden, GetParam().num_ranks);
  for (const auto& of_rank : ranks) ASSERT_TRUE(of_rank.ok()) << of_rank.status();
  const std::vector<float>& logits = *ranks.front();
  // To the bit, on every rank.
  for (const auto& of_rank : ranks) EXPECT_TRUE(*of_rank == logits);
  // What one rank is held to (transformer_test.cc): sums in another order differ by less.
  const auto vocab = static_cast<size_t>(golden.config.vocab_size);
  const size_t num_rows = golden.prefill_positions.size();
  for (size_t row = 0; row < num_rows + kSteps; ++row) {
    const auto want =
        row < num_rows ? golden.PrefillLogits(row) : golden.DecodeLogits(row - num_rows);
    EXPECT_LE(NormError(std::span(logits).subspan(row * vocab, vocab), want), 1e-4) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, ShardedTransformerTest,
    ::testing::Values(Sharing{"llama-d64-untied-bf16", 2},       // fewer KV heads than ranks
                      Sharing{"llama-d64-untied-bf16", 4},       //
                      Sharing{"llama-d128-tied-f16", 2},         // a KV head each; tied
                      Sharing{"llama-d128-tied-f16", 4},         //
                      Sharing{"qwen2-d128-yarn-bf16", 2},        // biases of queries and keys
                      Sharing{"qwen3-d64-untied-f32", 3},        // norms of heads
                      Sharing{"qwen3moe-d64-untied-bf16", 4},    // experts
                      Sharing{"mixtral-d64-untied-bf16", 2},     //
                      Sharing{"gemma3-d64-windows-bf16", 4},     // windows, norms of sums
                      Sharing{"gptoss-d64-mxfp4", 4},            // sinks, biases of sums, MXFP4
                      Sharing{"phi3-d64-partial-long-bf16", 2},  // tensors that lie together
                      Sharing{"llama-d80-untied-bf16", 3},       // padded heads
                      Sharing{"granite-d64-tied-bf16", 2},       // residual factors
                      Sharing{"smollm3-d64-norope-bf16", 2},     //
                      Sharing{"seedoss-d64-group10-bf16", 5},    //
                      Sharing{"qwen2-fp8-ct-static", 2},         // a scale for each matrix
                      Sharing{"llama-fp8-ct-channel", 3},        // for each row
                      Sharing{"qwen3-fp8-block", 2},             // for each block
                      Sharing{"llama-int4-ct-group", 2},         // int4: compressed-tensors
                      Sharing{"llama-int4-ct-channel", 4},       //
                      Sharing{"llama-int4-awq", 2},              //
                      Sharing{"llama-int4-gptq", 2},             //
                      Sharing{"llama-nvfp4-modelopt", 4}),       // codes that become numbers
    [](const auto& info) {
      std::string name = info.param.model + "_" + std::to_string(info.param.num_ranks);
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

// Rows of blocks, some of which have their places changed, are decoded where a rank has them.
TEST(ShardedTransformer, BlocksOfGgufFilesAreSplit) {
  for (const char* const name : {"llama", "qwen3moe"}) {
    const auto model = OpenGgufModel(test_support::GoldenGgufModel(name), name);
    ASSERT_TRUE(model.ok()) << model.status();
    const auto config = (*model)->ReadConfig();
    ASSERT_TRUE(config.ok()) << config.status();
    const auto checkpoint = (*model)->OpenWeights(*config);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const std::vector<int32_t> prompt = {1, 40, 7, 19, 33, 2};
    const auto logits = [&](int num_ranks) {
      return LogitsOfRanks(*config, *checkpoint, num_ranks, prompt, {0, 5}, {});
    };
    const RankLogits whole = logits(1);
    ASSERT_TRUE(whole[0].ok()) << whole[0].status();
    for (const auto& of_rank : logits(2)) {
      ASSERT_TRUE(of_rank.ok()) << name << ": " << of_rank.status();
      EXPECT_LE(NormError(*of_rank, *whole[0]), 1e-4) << name;
    }
  }
}

TEST(ShardedTransformer, RunsGiveTheSameBits) {
  const GoldenModel golden("gptoss-d64-mxfp4");
  const auto first = LogitsOfRanks(golden, 2);
  const auto second = LogitsOfRanks(golden, 2);
  ASSERT_TRUE(first[0].ok() && second[0].ok()) << first[0].status() << second[0].status();
  EXPECT_TRUE(*first[0] == *second[0]);
}

TEST(ShardedTransformer, WhatCannotBeSplitIsRefusedByName) {
  // Columns of the down projection in an order by importance.
  const auto act_order = LogitsOfRanks(GoldenModel("qwen2-int4-gptq-act-order"), 2);
  const auto blocks = LogitsOfRanks(GoldenModel("qwen3moe-fp8-block"), 2);
  for (const auto& of_rank : act_order) {
    EXPECT_EQ(of_rank.status().code(), absl::StatusCode::kUnimplemented) << of_rank.status();
    EXPECT_THAT(std::string(of_rank.status().message()), HasSubstr("g_idx"));
  }
  // Experts of 72 features are one block.
  for (const auto& of_rank : blocks) {
    EXPECT_EQ(of_rank.status().code(), absl::StatusCode::kInvalidArgument) << of_rank.status();
    EXPECT_THAT(std::string(of_rank.status().message()), HasSubstr("units of 128"));
  }
}

TEST(ShardedTransformer, RandomWeightsAreSlicesOfTheWhole) {
  ModelConfig config = *NamedModelShape("tiny");
  const std::vector<int32_t> prompt = {1, 5, 9, 200, 17};
  std::vector<std::vector<float>> logits(2);
  for (const int num_ranks : {1, 2}) {
    RankThreads ranks(num_ranks);
    ranks.Run([&](int rank) {
      Backend& backend = ranks.backend(rank);
      auto model =
          Transformer::LoadRandom(*backend.device, *backend.ops, config, OptionsOf(ranks, rank));
      ASSERT_TRUE(model.ok()) << model.status();
      auto result = RankRun(backend, **model, 16).Logits(prompt, {0, 4}, std::vector<int32_t>{3});
      ASSERT_TRUE(result.ok()) << result.status();
      if (rank == 0) logits[static_cast<size_t>(num_ranks - 1)] = *std::move(result);
    });
  }
  EXPECT_LE(NormError(logits[1], logits[0]), 1e-4);
}

TEST(ShardedTransformer, ARankOfOthersThanItsOperationsJoinIsRefused) {
  RankThreads ranks(2);
  Backend& backend = ranks.backend(1);
  const auto model = Transformer::LoadRandom(*backend.device, *backend.ops,
                                             *NamedModelShape("tiny"), {.parallel = {0, 2}});
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument) << model.status();
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("rank 1 of 2"));
}

// A rank that ends lets nobody wait.
TEST(ShardedTransformer, ARankThatEndsEndsTheOthers) {
  RankThreads ranks(2);
  ranks.Run([&](int rank) {
    Backend& backend = ranks.backend(rank);
    auto model = Transformer::LoadRandom(*backend.device, *backend.ops, *NamedModelShape("tiny"),
                                         OptionsOf(ranks, rank));
    ASSERT_TRUE(model.ok()) << model.status();
    if (rank == 1) return ranks.memory(rank).End();
    const auto logits = RankRun(backend, **model, 16).Logits({1, 2, 3}, {2}, {});
    EXPECT_EQ(logits.status().code(), absl::StatusCode::kAborted) << logits.status();
  });
}

}  // namespace
}  // namespace retroinfer
