#include "gpu_worker/model/channel_balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "build_paths.h"
#include "gpu_worker/model/fingerprint.h"
#include "gpu_worker/model/host_numbers.h"
#include "gpu_worker/model/model_weights.h"
#include "gpu_worker/model/turned_bias.h"
#include "tests/gpu_worker/model/golden_model.h"
#include "tests/gpu_worker/model/safetensors_text.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::GoldenModel;
using test_support::SafetensorsText;
using test_support::TempFolder;
using test_support::TensorText;

using Tensors = std::map<std::string, TensorText>;

std::string Name(int layer, const std::string& what) {
  return "model.layers." + std::to_string(layer) + ".self_attn." + what;
}

Tensors TensorsOf(const Checkpoint& checkpoint) {
  Tensors tensors;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    tensors[name] = {
        name, std::string(WeightTypeName(tensor.type)), tensor.shape,
        std::string(reinterpret_cast<const char*>(tensor.stored.data()), tensor.stored.size())};
  }
  return tensors;
}

// Multiplies row `row` of f32 or bf16 tensor by 2^exponent.
void Multiply(TensorText& tensor, int64_t row, int8_t exponent) {
  const WeightType type = tensor.dtype == "F32" ? WeightType::kF32 : WeightType::kBf16;
  std::vector<int8_t> exponents(static_cast<size_t>(tensor.shape[0]));
  exponents[static_cast<size_t>(row)] = exponent;
  const size_t cols = tensor.shape.size() == 1 ? 1 : static_cast<size_t>(tensor.shape[1]);
  ScaleRows(type, std::as_writable_bytes(std::span(tensor.bytes)), 0, cols, exponents);
}

// A golden model, and the same whose key channel pairs are made larger and query channels smaller.
class ChannelBalanceTest : public ::testing::TestWithParam<std::string> {
 protected:
  // Makes pair `pair` of KV head `head` of a layer 2^exponent times larger in keys.
  void Plant(Tensors& tensors, int layer, int64_t head, int64_t pair, int8_t exponent) {
    const int64_t width = config_.head_dim;
    for (const int64_t channel : {pair, pair + width / 2}) {
      const auto less = static_cast<int8_t>(-exponent);
      if (config_.qk_norm) {
        Multiply(tensors.at(Name(layer, "k_norm.weight")), channel, exponent);
        Multiply(tensors.at(Name(layer, "q_norm.weight")), channel, less);
        continue;
      }
      for (const std::string part : {"weight", "bias"}) {
        if (part == "bias" && !config_.qkv_bias) continue;
        const std::string what = part == "weight" && HasCodes() ? "weight_scale" : part;
        Multiply(tensors.at(Name(layer, "k_proj." + what)), head * width + channel, exponent);
        for (uint32_t i = 0; i < config_.group_size(); ++i) {
          const int64_t query_head = head * config_.group_size() + i;
          Multiply(tensors.at(Name(layer, "q_proj." + what)), query_head * width + channel, less);
        }
      }
    }
  }
  bool HasCodes() const { return config_.quantization.has_value(); }
  Checkpoint Write(const Tensors& tensors) {
    std::vector<TensorText> list;
    for (const auto& [name, tensor] : tensors) list.push_back(tensor);
    folder_.Write("model.safetensors", SafetensorsText(list));
    return *Checkpoint::Open(folder_.path());
  }
  std::vector<float> Numbers(const MatrixView& view) {
    const size_t bytes = static_cast<size_t>(view.cols) * DTypeBytes(view.dtype);
    std::vector<std::byte> copy(bytes);
    EXPECT_TRUE(backend_->device
                    ->Download(*backend_->stream,
                               DeviceSpan<std::byte>(static_cast<std::byte*>(view.data), bytes),
                               copy)
                    .ok());
    EXPECT_TRUE(backend_->stream->Synchronize().ok());
    return NumbersOf(view.dtype == DType::kF32 ? WeightType::kF32 : WeightType::kBf16, copy);
  }
  // What the layer makes of a row of activations: queries, keys and values; and its norms.
  std::vector<float> Outputs(const ModelWeights& weights, size_t layer) {
    test_support::DeviceData data(*backend_);
    std::vector<float> row;
    for (int64_t i = 0; i < config_.hidden_size; ++i) {
      row.push_back(std::sin(static_cast<float>(i)));
    }
    const PreparedLinear& qkv = *weights.layers[layer].qkv;
    const auto x = data.Activations(row, 1, config_.hidden_size);
    const auto y = data.Poisoned(1, qkv.out_features());
    EXPECT_TRUE(backend_->ops->model()
                    .Linear(*backend_->stream,
                            {.linear = &qkv, .in = x.view, .out = y.view, .decode = true})
                    .ok());
    std::vector<float> all = data.Values(y);
    if (config_.qk_norm) {
      for (const MatrixView& norm : {weights.layers[layer].q_norm, weights.layers[layer].k_norm}) {
        for (const float value : Numbers(norm)) all.push_back(value);
      }
    }
    return all;
  }

  const GoldenModel golden_{GetParam()};
  const ModelConfig& config_ = golden_.config;
  TempFolder folder_;
  std::unique_ptr<test_support::Backend> backend_ =
      test_support::AvailableBackends().front().create();
};

TEST_P(ChannelBalanceTest, FindsWhatWasPlantedAndUndoesItToTheBit) {
  const ChannelBalance plain = ChannelBalance::Of(config_, golden_.checkpoint, 1);
  Tensors tensors = TensorsOf(golden_.checkpoint);
  const int64_t head = config_.qk_norm ? 0 : config_.num_kv_heads - 1;
  // One above the median becomes larger and one below it smaller, so that the median stays.
  const int64_t heads = config_.qk_norm ? 1 : config_.num_kv_heads;
  const int64_t half = config_.head_dim / 2;
  std::vector<int8_t> expected = plain.exponents();
  const auto begin = expected.begin() + (heads + head) * half;
  const auto largest = std::max_element(begin, begin + half);
  auto smallest = std::min_element(begin, begin + half);
  if (smallest == largest) smallest += 3;  // all are alike
  Plant(tensors, 1, head, largest - begin, 5);
  Plant(tensors, 1, head, smallest - begin, -4);
  *largest = static_cast<int8_t>(*largest + 5);
  *smallest = static_cast<int8_t>(*smallest - 4);
  const Checkpoint twin = Write(tensors);
  const ChannelBalance balance = ChannelBalance::Of(config_, twin, 3);
  EXPECT_EQ(balance.exponents(), expected);
  EXPECT_FALSE(balance.is_identity());

  ModelOps& ops = backend_->ops->model();
  for (const WeightSource source : {WeightSource::kMapping, WeightSource::kReading}) {
    const auto want = LoadModelWeights(*backend_->device, ops, config_, golden_.checkpoint,
                                       {.source = source}, KeptWeights::kAsStored, plain);
    const auto got = LoadModelWeights(*backend_->device, ops, config_, twin, {.source = source},
                                      KeptWeights::kAsStored, balance);
    const auto unchanged = LoadModelWeights(*backend_->device, ops, config_, twin,
                                            {.source = source}, KeptWeights::kAsStored, {});
    ASSERT_TRUE(want.ok() && got.ok() && unchanged.ok()) << want.status() << got.status();
    for (size_t layer = 0; layer < config_.num_layers; ++layer) {
      EXPECT_EQ(Outputs(*got, layer), Outputs(*want, layer)) << layer;
    }
    EXPECT_NE(Outputs(*unchanged, 1), Outputs(*want, 1));
  }
}

// What is stored under a name is of balanced keys or of others, never of both.
TEST_P(ChannelBalanceTest, IsPartOfTheFingerprintWhereItChangesSomething) {
  Tensors tensors = TensorsOf(golden_.checkpoint);
  Plant(tensors, 0, 0, 1, 6);
  const Checkpoint twin = Write(tensors);
  const ChannelBalance none, balance = ChannelBalance::Of(config_, twin, 1);
  const auto without = ModelFingerprint(config_, twin, {});
  EXPECT_EQ(*without, *ModelFingerprint(config_, twin, {.progress = {}, .balance = &none}));
  EXPECT_NE(*without, *ModelFingerprint(config_, twin, {.progress = {}, .balance = &balance}));
}

INSTANTIATE_TEST_SUITE_P(Golden, ChannelBalanceTest,
                         ::testing::Values("llama-d64-untied-bf16", "llama-fp8-ct-channel",
                                           "qwen2-d64-group7-mixed", "qwen3-d128-tied-bf16",
                                           "qwen3-d64-untied-f32"),
                         [](const auto& param) {
                           std::string name = param.param;
                           for (char& c : name) {
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           }
                           return name;
                         });

// Rows of a block share its scales; where queries and keys are normed, the norms are multiplied.
TEST(ChannelBalance, BlocksOfCodesStay) {
  const GoldenModel llama("llama-fp8-ct-block");
  EXPECT_TRUE(ChannelBalance::Of(llama.config, llama.checkpoint, 1).is_identity());
  const GoldenModel qwen3("qwen3-fp8-block");
  EXPECT_EQ(ChannelBalance::Of(qwen3.config, qwen3.checkpoint, 1).num_pairs(),
            int64_t{qwen3.config.num_layers} * qwen3.config.head_dim / 2);
}

// Figures and files of these were made before there was a balance.
TEST(ChannelBalance, TheModelsOfThisTreeStayAsTheyAre) {
  for (const std::string name : {"needle", "code"}) {
    const std::string folder = std::string(RETROINFER_SOURCE_DIR) + "/models/" + name;
    const auto config = LoadModelConfig(folder);
    const auto checkpoint = Checkpoint::Open(folder);
    ASSERT_TRUE(config.ok() && checkpoint.ok()) << folder;
    EXPECT_TRUE(ChannelBalance::Of(*config, *checkpoint, 2).is_identity()) << name;
  }
}

// Zeros, numbers that are none, and types without room for more exponents.
class OneLayerTest : public ::testing::Test {
 protected:
  OneLayerTest() {
    config_.family = ModelFamily::kLlama;
    config_.hidden_size = 8;
    config_.intermediate_size = 8;
    config_.num_layers = 1;
    config_.num_query_heads = 2;
    config_.num_kv_heads = 1;
    config_.head_dim = 64;
    config_.vocab_size = 10;
    config_.context_length = 64;
  }
  // Matrices of ones, but `row` of k_proj and its pair, which have `number`.
  ChannelBalance BalanceWith(float number, int64_t row, const std::string& dtype = "BF16") {
    std::vector<TensorText> list;
    const ModelTable table(config_);
    for (const auto& [name, stored] : table.stored()) {
      const std::vector<int64_t>& shape = stored.shape;
      TensorText tensor{name, dtype, shape, ""};
      const int64_t cols = shape.size() == 1 ? 1 : shape[1];
      for (int64_t i = 0; i < shape[0] * cols; ++i) {
        const int64_t channel = i / cols / 64 < first_head_ ? -1 : i / cols % 64;
        const bool other =
            name.find("k_proj") != std::string::npos && (channel == row || channel == row + 32);
        const bool is_bias = name.find("k_proj.bias") != std::string::npos;
        const float value = other ? (is_bias ? bias_of_row_ : number) : 1.0f;
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof(bits));
        if (dtype == "F16") bits = (other ? 0x5c00u : 0x3c00u) << 16;  // 256 and 1
        tensor.bytes.push_back(static_cast<char>(bits >> 16 & 0xff));
        tensor.bytes.push_back(static_cast<char>(bits >> 24));
      }
      list.push_back(tensor);
    }
    folder_.Write("model.safetensors", SafetensorsText(list));
    const auto checkpoint = Checkpoint::Open(folder_.path());
    EXPECT_TRUE(checkpoint.ok() && CheckTensors(config_, *checkpoint).ok());
    return ChannelBalance::Of(config_, *checkpoint, 1);
  }

  ModelConfig config_;
  float bias_of_row_ = 1;   // of the row's channels
  int64_t first_head_ = 0;  // heads before it have ones alone
  TempFolder folder_;
};

TEST_F(OneLayerTest, TheRootOfTheRatioDecides) {
  // 256 times larger in keys alone: keys a sixteenth, queries 16 times as large.
  std::vector<int8_t> expected(32);
  expected[7] = 4;
  const ChannelBalance balance = BalanceWith(256, 7);
  EXPECT_EQ(balance.exponents(), expected);
  const ModelTable table(config_);
  const auto exponents = [&](const std::string& name) {
    return balance.RowExponents(table.stored().at(name));
  };
  const std::vector<int8_t> keys = exponents("model.layers.0.self_attn.k_proj.weight");
  ASSERT_EQ(keys.size(), 64u);
  EXPECT_EQ(keys[7], -4);
  EXPECT_EQ(keys[39], -4);
  EXPECT_EQ(keys[8], 0);
  const std::vector<int8_t> queries = exponents("model.layers.0.self_attn.q_proj.weight");
  ASSERT_EQ(queries.size(), 128u);
  EXPECT_EQ(queries[64 + 7], 4);
  EXPECT_TRUE(exponents("model.layers.0.self_attn.v_proj.weight").empty());
  EXPECT_TRUE(exponents("lm_head.weight").empty());
}

TEST_F(OneLayerTest, TheLargestBiasIsFoundBesideWhatWeightsGive) {
  EXPECT_EQ(BalanceWith(1, 7).largest_bias().times, 0) << "a model without biases";
  config_.qkv_bias = true;  // all of them 1, like the weights, of which a row has eight
  std::vector<float> bias(64, 1.0f);
  const auto turned = [&] {
    return TurnBias(config_.rope, config_.head_dim, config_.context_length, bias);
  };
  const std::vector<double> rests = turned().largest_rests;
  EXPECT_NEAR(BalanceWith(1, 7).largest_bias().times,
              *std::max_element(rests.begin(), rests.end()) / 4, 1e-9);
  bias_of_row_ = bias[7] = bias[39] = 100;
  const ChannelBalance balance = BalanceWith(1, 7);
  const ChannelBalance::LargestBias& largest = balance.largest_bias();
  EXPECT_EQ(balance.exponents()[7], 3) << "the root of what varies of the bias beside the weights";
  EXPECT_NEAR(largest.times, turned().largest_rests[7] / 4 / 8, 1e-9);
  EXPECT_EQ(largest.channel % 32, 7);
  EXPECT_EQ(largest.layer, 0);
  EXPECT_EQ(largest.head, 0);
}

TEST_F(OneLayerTest, WhatTurnedBiasesHaveInCommonIsTakenFromKeys) {
  EXPECT_TRUE(BalanceWith(1, 7).key_offsets(0).empty()) << "a model without biases";
  config_.qkv_bias = true;
  bias_of_row_ = 100;
  const ChannelBalance balance = BalanceWith(1, 31);
  std::vector<float> bias(64, 1.0f);
  bias[31] = bias[63] = 100;
  const TurnedBias turned = TurnBias(config_.rope, config_.head_dim, config_.context_length, bias);
  const std::span<const float> offsets = balance.key_offsets(0);
  ASSERT_EQ(offsets.size(), 64u);
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(offsets[i], std::ldexp(turned.means[i], -balance.exponents()[i % 32])) << i;
  }
  EXPECT_GT(std::abs(offsets[31]), 90) << "the slowest pair stays where it is";
}

TEST_F(OneLayerTest, RanksHaveWhatIsOfTheirHeads) {
  config_.num_kv_heads = 2;
  config_.num_query_heads = 4;
  config_.qkv_bias = true;
  first_head_ = 1;
  bias_of_row_ = 100;
  const ChannelBalance whole = BalanceWith(256, 31);
  const std::span<const float> offsets = whole.key_offsets(0);
  ModelConfig config = config_;
  config.num_kv_heads = 1;
  config.num_query_heads = 2;
  const ModelTable table(config);
  for (const uint32_t head : {0u, 1u}) {
    const ChannelBalance part = whole.Of({.query_heads = {2 * head, 2}, .kv_heads = {head, 1, 2}});
    EXPECT_EQ(part.num_changed(), head == 0 ? 0 : 1);
    const auto first = offsets.begin() + 64 * head;
    EXPECT_THAT(part.key_offsets(0), ::testing::ElementsAreArray(first, first + 64));
    const auto keys =
        part.RowExponents(table.stored().at("model.layers.0.self_attn.k_proj.weight"));
    const auto queries =
        part.RowExponents(table.stored().at("model.layers.0.self_attn.q_proj.weight"));
    if (head == 0) {
      EXPECT_TRUE(keys.empty() && queries.empty());
      continue;
    }
    ASSERT_EQ(keys.size(), 64u);
    ASSERT_EQ(queries.size(), 128u);
    EXPECT_LT(keys[31], 0);
    EXPECT_EQ(queries[64 + 31], -keys[31]);
  }
  EXPECT_NE(offsets[31], offsets[64 + 31]);
}

TEST_F(OneLayerTest, KeysThatAreNotTurnedKeepTheirBias) {
  config_.qkv_bias = true;
  bias_of_row_ = 100;
  config_.layers_without_rope = {0};
  const ChannelBalance balance = BalanceWith(1, 31);
  for (const float offset : balance.key_offsets(0)) EXPECT_EQ(offset, 0);
  EXPECT_NEAR(balance.largest_bias().times, 100 / 8.0 / 4, 1e-9) << "balancing divides it by 8";
}

TEST_F(OneLayerTest, ChannelsThatAreNotThereStayWithinBounds) {
  const ChannelBalance balance = BalanceWith(0, 7);
  for (const int8_t exponent : balance.exponents()) {
    EXPECT_LE(std::abs(exponent), ChannelBalance::kMaxExponent);
  }
}

TEST_F(OneLayerTest, NumbersThatAreNoneChangeNothing) {
  EXPECT_TRUE(BalanceWith(std::nanf(""), 7).is_identity());
  EXPECT_TRUE(BalanceWith(INFINITY, 7).is_identity());
}

TEST_F(OneLayerTest, SixteenBitsWithFiveOfExponentStay) {
  EXPECT_TRUE(BalanceWith(256, 7, "F16").is_identity());
}

TEST(ChannelBalanceTest, EightBitsAreRefusedWhereABiasLeavesNothingToTheOthers) {
  const ChannelBalance::LargestBias small{.times = 127.9, .layer = 3, .head = 1, .channel = 99};
  const ChannelBalance::LargestBias large{.times = 128.5, .layer = 3, .head = 1, .channel = 99};
  EXPECT_TRUE(CheckBiases(small, kInt8Kv).ok());
  EXPECT_TRUE(CheckBiases(large, kBf16Kv).ok());
  EXPECT_TRUE(CheckBiases(large, kBf16Int8Kv).ok());
  const absl::Status refused = CheckBiases(large, kInt8Kv);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              testing::HasSubstr("layer 3, head 1, channel 99 is 128.5 times"));
}

}  // namespace
}  // namespace retroinfer
