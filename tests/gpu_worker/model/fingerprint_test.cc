#include "gpu_worker/model/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "gpu_worker/model/model_shapes.h"
#include "tests/gpu_worker/model/golden_model.h"
#include "tests/gpu_worker/model/safetensors_text.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::SafetensorsText;
using test_support::TempFolder;
using test_support::TensorText;

ModelConfig Config() {
  ModelConfig config;
  config.hidden_size = 4;
  config.num_layers = 1;
  config.num_query_heads = 1;
  config.num_kv_heads = 1;
  config.head_dim = 64;
  config.vocab_size = 10;
  return config;
}

std::vector<TensorText> Tensors() {
  return {{"a", "F32", {2, 1}, "01234567"}, {"b", "BF16", {3}, "abcdef"}};
}

std::string Hex(const ModelConfig& config, const std::vector<TensorText>& tensors,
                int num_threads = 1) {
  TempFolder folder;
  folder.Write("model.safetensors", SafetensorsText(tensors));
  const auto checkpoint = Checkpoint::Open(folder.path());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto fingerprint = ModelFingerprint(config, *checkpoint, {num_threads, nullptr});
  EXPECT_TRUE(fingerprint.ok()) << fingerprint.status();
  return FingerprintHex(*fingerprint);
}

TEST(FingerprintBuilderTest, IsSha256OfTheDocumentedBytes) {
  // sha256(01 00 00 00 'n' 02 00 00 00 00 00 00 00 'v' 'w'), computed with coreutils.
  FingerprintBuilder builder;
  const std::string value = "vw";
  builder.AddBytes("n", std::as_bytes(std::span(value)));
  EXPECT_EQ(FingerprintHex(builder.Finish()),
            "9f7e17f4c24af1091b2966dd9024c00cd1fdc2c6deb176db7624c834fe08228c");
}

TEST(FingerprintBuilderTest, BoundariesMatter) {
  const auto of = [](const std::vector<std::pair<std::string, std::string>>& values) {
    FingerprintBuilder builder;
    for (const auto& [name, value] : values) {
      builder.AddBytes(name, std::as_bytes(std::span(value)));
    }
    return FingerprintHex(builder.Finish());
  };
  EXPECT_EQ(of({{"a", "b"}}), of({{"a", "b"}}));
  EXPECT_NE(of({{"ab", ""}}), of({{"a", "b"}}));
  EXPECT_NE(of({{"a", "b"}, {"c", "d"}}), of({{"c", "d"}, {"a", "b"}}));
  EXPECT_NE(of({}), of({{"", ""}}));
}

// Each makes other KV.
const std::vector<void (*)(ModelConfig&)> kChanges = {
    [](ModelConfig& c) { c.family = ModelFamily::kQwen2; },
    [](ModelConfig& c) { c.layers_without_rope = {0}; },
    [](ModelConfig& c) { c.hidden_size = 5; },
    [](ModelConfig& c) { c.num_layers = 2; },
    [](ModelConfig& c) { c.num_query_heads = 2; },
    [](ModelConfig& c) { c.num_kv_heads = 2; },
    [](ModelConfig& c) { c.head_dim = 128; },
    [](ModelConfig& c) { c.rms_norm_epsilon = 1e-5f; },
    [](ModelConfig& c) { c.qkv_bias = true; },
    [](ModelConfig& c) { c.qk_norm = true; },
    [](ModelConfig& c) { c.rope.type = RopeConfig::Type::kLinear; },
    [](ModelConfig& c) { c.rope.theta = 5e5; },
    [](ModelConfig& c) { c.rope.factor = 8; },
    [](ModelConfig& c) { c.rope.low_freq_factor = 2; },
    [](ModelConfig& c) { c.rope.high_freq_factor = 5; },
    [](ModelConfig& c) { c.rope.original_positions = 8192; },
    [](ModelConfig& c) { c.rope.beta_fast = 31; },
    [](ModelConfig& c) { c.rope.beta_slow = 2; },
    [](ModelConfig& c) { c.rope.truncate = false; },
    [](ModelConfig& c) { c.rope.attention_factor = 1.1; },
    [](ModelConfig& c) { c.rope.rotated_part = 0.75; },
    [](ModelConfig& c) { c.rope.query_growth = 0.1; },
    [](ModelConfig& c) {
      c.rope.type = RopeConfig::Type::kLong;
      c.rope.short_factors = {1};
      c.rope.long_factors = {2};
    },
    [](ModelConfig& c) {
      c.rope.type = RopeConfig::Type::kLong;
      c.rope.short_factors = {1};
      c.rope.long_factors = {2};
      c.rope.serves_long = true;
    },
    [](ModelConfig& c) { c.stored_head_dim = 56; },
    [](ModelConfig& c) { c.score_scale = 1; },
    [](ModelConfig& c) { c.embedding_multiplier = 12; },
    [](ModelConfig& c) { c.residual_multiplier = 0.22; },
    [](ModelConfig& c) {
      c.quantization = {kFp8OfMatrices, "fp8"};
    },
    [](ModelConfig& c) {
      c.quantization = {kFp8OfBlocks, "fp8"};
    },
};

TEST(FingerprintTest, EverythingThatChangesKvChangesIt) {
  std::set<std::string> seen = {Hex(Config(), Tensors())};
  const auto expect_new = [&seen](const ModelConfig& config,
                                  const std::vector<TensorText>& tensors) {
    EXPECT_TRUE(seen.insert(Hex(config, tensors)).second) << seen.size();
  };
  for (const auto change : kChanges) {
    ModelConfig config = Config();
    change(config);
    expect_new(config, Tensors());
  }
  for (size_t i = 0; i < 8; ++i) {
    auto tensors = Tensors();
    tensors[0].bytes[i] ^= 1;
    expect_new(Config(), tensors);
  }
  auto tensors = Tensors();
  tensors[0].shape = {1, 2};
  expect_new(Config(), tensors);
  tensors = Tensors();
  tensors[1].dtype = "F16";
  expect_new(Config(), tensors);
  tensors = Tensors();
  tensors[1].name = "c";
  expect_new(Config(), tensors);
  tensors = Tensors();
  tensors.pop_back();
  expect_new(Config(), tensors);
}

// Contexts that people have stored are found by these.
TEST(FingerprintTest, ThoseOfModelsThatThereAreStay) {
  for (const auto& [name, hex] :
       {std::pair("llama-d64-untied-bf16",
                  "2fce214e46308594b3c9c54f071ed034f638bc53f201b3e966cc6723d25fec49"),
        {"llama-fp8-ct-channel",
         "64055c8805fd68da4f0c5c9ad8f26a0794a297e3d10263bda7263675a8d27a48"},
        {"qwen2-d64-group7-mixed",
         "9612add258b0c4fad3025ae64240690e6fcf63b137e50d6f84deb3c204fc2073"},
        {"qwen3-d64-untied-f32",
         "adc34ea04ec4a6535632e45fff2f71e3296d31cb93ba226a65c3a77cf892235f"}}) {
    const test_support::GoldenModel model(name);
    const auto fingerprint = ModelFingerprint(model.config, model.checkpoint, {});
    ASSERT_TRUE(fingerprint.ok()) << fingerprint.status();
    EXPECT_EQ(FingerprintHex(*fingerprint), hex) << name;
  }
  EXPECT_EQ(FingerprintHex(RandomModelFingerprint(*NamedModelShape("tiny"), KeptWeights::kFp8)),
            "8b158c8e54b9890703db7b62651b26b1f1d812f68580a74af9bd8ba7b8c6c20f");
}

TEST(FingerprintTest, HowExpertsAreChosenMatters) {
  const ModelConfig experts = *NamedModelShape("tiny-experts");
  const auto hex = [](const ModelConfig& config) {
    return FingerprintHex(RandomModelFingerprint(config, KeptWeights::kAsStored));
  };
  std::set<std::string> seen = {hex(experts)};
  const auto expect_new = [&](const auto& change) {
    ModelConfig other = experts;
    change(other.experts);
    EXPECT_TRUE(seen.insert(hex(other)).second);
  };
  expect_new([](ExpertsConfig& config) { config.count = 16; });
  expect_new([](ExpertsConfig& config) { config.per_token = 3; });
  expect_new([](ExpertsConfig& config) { config.weights_sum_to_one = false; });
  expect_new([](ExpertsConfig& config) { config = {}; });
}

TEST(FingerprintTest, FilesOrderAndThreadsDoNotMatter) {
  auto reversed = Tensors();
  std::swap(reversed[0], reversed[1]);
  EXPECT_EQ(Hex(Config(), Tensors()), Hex(Config(), reversed));
  // More than one piece, and a part of one.
  const std::vector<TensorText> large = {{"a", "F16", {9 << 20}, std::string(18 << 20, 'x')},
                                         {"b", "F16", {1}, "yy"}};
  EXPECT_EQ(Hex(Config(), large, 1), Hex(Config(), large, 4));
  auto changed = large;
  changed[0].bytes[17 << 20] = 'y';
  EXPECT_NE(Hex(Config(), large, 4), Hex(Config(), changed, 4));
}

TEST(FingerprintTest, ReportsProgress) {
  TempFolder folder;
  folder.Write("model.safetensors", SafetensorsText(Tensors()));
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok());
  std::vector<size_t> done;
  ASSERT_TRUE(ModelFingerprint(Config(), *checkpoint,
                               {2,
                                [&](size_t bytes, size_t total) {
                                  done.push_back(bytes);
                                  EXPECT_EQ(total, 14u);
                                }})
                  .ok());
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done.back(), 14u);
}

}  // namespace
}  // namespace retroinfer
