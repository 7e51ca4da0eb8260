#include "gpu_worker/model/gguf/gguf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu_worker/model/gguf/gguf_text.h"
#include "tests/gpu_worker/model/gguf/golden_gguf.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::GgufText;
using test_support::SmallGgufModel;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

class GgufConfigTest : public ::testing::Test {
 protected:
  GgufFiles Files(const GgufText& text) {
    return GgufFiles::Open(folder_.Write("x.gguf", text.Bytes())).value();
  }
  void ExpectError(const GgufText& text, absl::StatusCode code, const std::string& part) {
    const auto config = ReadGgufConfig(Files(text));
    EXPECT_EQ(config.status().code(), code) << config.status();
    EXPECT_THAT(std::string(config.status().message()), HasSubstr("x.gguf"));
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(part));
  }

  test_support::TempFolder folder_;
};

class GoldenGgufConfigTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenGgufConfigTest, KeysSayWhatAConfigJsonWould) {
  const auto files = GgufFiles::Open(test_support::GoldenGgufModel(GetParam()));
  ASSERT_TRUE(files.ok()) << files.status();
  const auto config = ReadGgufConfig(*files);
  ASSERT_TRUE(config.ok()) << config.status();
  const nlohmann::json expected = test_support::GoldenGgufExpected(GetParam())["config"];
  EXPECT_EQ(ModelFamilyName(config->family), expected["family"].get<std::string>());
  EXPECT_EQ(config->num_layers, 2u);
  EXPECT_EQ(config->hidden_size, expected["hidden_size"].get<int64_t>());
  EXPECT_EQ(config->intermediate_size, expected["intermediate_size"].get<int64_t>());
  EXPECT_EQ(config->num_query_heads, expected["query_heads"].get<uint32_t>());
  EXPECT_EQ(config->num_kv_heads, expected["kv_heads"].get<uint32_t>());
  EXPECT_EQ(config->head_dim, expected["head_dim"].get<uint32_t>());
  EXPECT_EQ(config->vocab_size, expected["vocab_size"].get<int64_t>());
  EXPECT_EQ(config->context_length, expected["context_length"].get<int64_t>());
  EXPECT_EQ(config->tie_word_embeddings, expected["tied"].get<bool>());
  EXPECT_EQ(config->rms_norm_epsilon, expected["epsilon"].get<float>());
  EXPECT_EQ(config->qkv_bias, config->family == ModelFamily::kQwen2);
  EXPECT_EQ(config->qk_norm,
            config->family == ModelFamily::kQwen3 || config->family == ModelFamily::kQwen3Moe);
  EXPECT_FALSE(config->dtype.has_value());
  const nlohmann::json& rope = expected["rope"];
  const std::string type = rope["type"].get<std::string>();
  EXPECT_EQ(config->rope.type, type == "llama3" ? RopeConfig::Type::kLlama3
                               : type == "yarn" ? RopeConfig::Type::kYarn
                                                : RopeConfig::Type::kDefault);
  EXPECT_EQ(config->rope.theta, rope["theta"].get<double>());
  EXPECT_EQ(config->rope.factor, rope["factor"].get<double>());
  EXPECT_EQ(config->rope.original_positions, rope["original"].get<int64_t>());
}

INSTANTIATE_TEST_SUITE_P(, GoldenGgufConfigTest,
                         ::testing::Values("llama", "qwen2", "qwen3", "qwen3moe"));

TEST_F(GgufConfigTest, ExpertsOfQwen3Moe) {
  const auto config = ReadGgufConfig(*GgufFiles::Open(test_support::GoldenGgufModel("qwen3moe")));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->experts.count, 3);
  EXPECT_EQ(config->experts.per_token, 2);
  EXPECT_TRUE(config->experts.weights_sum_to_one);
  const auto small = [] {
    return SmallGgufModel("qwen3moe")
        .Int("qwen3moe.expert_count", 4)
        .Int("qwen3moe.expert_used_count", 2)
        .Int("qwen3moe.expert_feed_forward_length", 32);
  };
  EXPECT_TRUE(ReadGgufConfig(Files(small())).ok());
  ExpectError(SmallGgufModel("qwen3moe"), kInvalid, "qwen3moe.expert_count");
  ExpectError(SmallGgufModel("qwen3moe").Int("qwen3moe.expert_count", 257), kInvalid, "256");
  ExpectError(SmallGgufModel("qwen3moe")
                  .Int("qwen3moe.expert_count", 4)
                  .Int("qwen3moe.expert_used_count", 5),
              kInvalid, "qwen3moe.expert_used_count");
  ExpectError(small().Int("qwen3moe.expert_shared_count", 1), kUnimplemented, "share");
  ExpectError(small().Int("qwen3moe.expert_gating_func", 2), kUnimplemented, "softmax");
  ExpectError(small().Int("qwen3moe.leading_dense_block_count", 1), kUnimplemented, "dense layers");
}

TEST_F(GgufConfigTest, WhatIsLeftOutFollowsFromTheRest) {
  const auto config = ReadGgufConfig(Files(SmallGgufModel()));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 64u);
  EXPECT_EQ(config->vocab_size, 3);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->rope, RopeConfig{});
}

TEST_F(GgufConfigTest, OtherModelsAreRefusedByName) {
  ExpectError(SmallGgufModel("gemma3"), kUnimplemented,
              "key \"general.architecture\": \"gemma3\" is not supported; llama, qwen2, qwen3");
  ExpectError(SmallGgufModel().Int("llama.expert_count", 8), kUnimplemented, "qwen3moe files only");
  ExpectError(SmallGgufModel().Float("llama.logit_scale", 0.5f), kUnimplemented, "scaled logits");
  ExpectError(SmallGgufModel().Float("llama.final_logit_softcapping", 30), kUnimplemented,
              "capped logits");
  ExpectError(SmallGgufModel("qwen2").Int("qwen2.attention.sliding_window", 1024), kUnimplemented,
              "a sliding window");
  ExpectError(SmallGgufModel().Bool("llama.attention.causal", false), kUnimplemented, "causal");
  ExpectError(SmallGgufModel("qwen2").Ints("qwen2.rope.dimension_sections", {16, 24, 24}),
              kUnimplemented, "multimodal RoPE");
  ExpectError(SmallGgufModel().Int("llama.attention.key_length", 96), kUnimplemented,
              "heads of 96 dimensions");
  ExpectError(SmallGgufModel().Int("llama.attention.value_length", 128), kUnimplemented,
              "values of another length");
}

TEST_F(GgufConfigTest, SettingsWithoutEffectAreFine) {
  const auto config = ReadGgufConfig(Files(SmallGgufModel()
                                               .Int("llama.expert_count", 0)
                                               .Float("llama.logit_scale", 1)
                                               .Float("llama.residual_scale", 0)
                                               .Int("llama.attention.sliding_window", 4096)
                                               .Int("llama.vocab_size", 3)));
  EXPECT_TRUE(config.ok()) << config.status();
}

TEST_F(GgufConfigTest, WhatContradictsItselfIsRefused) {
  ExpectError(SmallGgufModel().Int("llama.vocab_size", 4), kInvalid, "llama.vocab_size");
  ExpectError(GgufText().Text("general.architecture", "llama"), kInvalid, "llama.block_count");
  ExpectError(GgufText().Int("general.architecture", 1), kInvalid, "must be a string");
  ExpectError(GgufText(), kInvalid, "general.architecture\": is missing");
}

TEST_F(GgufConfigTest, AnswersEndAtTheTokensThatAreKnownTo) {
  const GgufText text = SmallGgufModel()
                            .Int("tokenizer.ggml.eos_token_id", 1)
                            .Int("tokenizer.ggml.bos_token_id", 0)
                            .Texts("tokenizer.ggml.tokens", {"<|endoftext|>", "x", "<|im_end|>"})
                            .Ints("tokenizer.ggml.token_type", {3, 3, 1})
                            .Float("general.sampling.temp", 0.5f)
                            .Int("general.sampling.top_k", 20);
  const GgufFiles files = Files(text);
  const auto generation = ReadGgufGeneration(files, ReadGgufConfig(files).value());
  ASSERT_TRUE(generation.ok()) << generation.status();
  // <|im_end|> is a word of the vocabulary here, no control token.
  EXPECT_THAT(generation->eos_token_ids, ElementsAre(1, 0));
  EXPECT_EQ(generation->bos_token_id, 0);
  EXPECT_EQ(generation->temperature, 0.5f);
  EXPECT_EQ(generation->top_k, 20);
  EXPECT_FALSE(generation->top_p.has_value());
}

TEST_F(GgufConfigTest, EndsOutsideOfTheVocabularyAreRefused) {
  const GgufFiles files = Files(SmallGgufModel().Int("tokenizer.ggml.eot_token_id", 3));
  const auto generation = ReadGgufGeneration(files, ReadGgufConfig(files).value());
  EXPECT_EQ(generation.status().code(), kInvalid);
  EXPECT_THAT(std::string(generation.status().message()), HasSubstr("eot_token_id\": is 3"));
}

}  // namespace
}  // namespace retroinfer
