#include "gpu_worker/model/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig Model() {
  ModelConfig model;
  model.vocab_size = 1000;
  model.eos_token_ids = {7};
  return model;
}

absl::StatusOr<GenerationConfig> Read(const std::string& text) {
  const auto json = common::JsonReader::ParseObject(text, "generation_config.json");
  EXPECT_TRUE(json.ok()) << json.status();
  return ReadGenerationConfig(*json, Model());
}

TEST(GenerationConfigTest, ReadsValues) {
  const auto config = Read(
      R"({"bos_token_id": 1, "eos_token_id": [2, 3], "do_sample": true, "temperature": 0.6,
          "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.05,
          "transformers_version": "4.42.3"})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->eos_token_ids, ElementsAre(2, 3));
  EXPECT_EQ(config->bos_token_id, 1);
  EXPECT_EQ(config->do_sample, true);
  EXPECT_EQ(config->temperature, 0.6f);
  EXPECT_EQ(config->top_p, 0.9f);
  EXPECT_EQ(config->top_k, 20);
  EXPECT_EQ(config->min_p, 0.05f);
  EXPECT_EQ(config->repetition_penalty, 1.05f);
}

TEST(GenerationConfigTest, AbsentValuesStayAbsent) {
  const auto config = Read(R"({"temperature": null})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->eos_token_ids, ElementsAre(7));
  EXPECT_FALSE(config->bos_token_id || config->do_sample || config->temperature || config->top_p ||
               config->top_k || config->min_p || config->repetition_penalty);
}

TEST(GenerationConfigTest, OneEndTokenAndTopKSwitchedOff) {
  EXPECT_THAT(Read(R"({"eos_token_id": 9})")->eos_token_ids, ElementsAre(9));
  EXPECT_FALSE(Read(R"({"top_k": 0})")->top_k.has_value());
  EXPECT_FALSE(Read(R"({"top_k": -1})")->top_k.has_value());
}

TEST(GenerationConfigTest, HostileValuesAreInvalid) {
  for (const std::string text :
       {R"({"eos_token_id": 1000})", R"({"eos_token_id": -1})", R"({"eos_token_id": "a"})",
        R"({"eos_token_id": [1, [2]]})", R"({"eos_token_id": 1.5})", R"({"bos_token_id": 1000})",
        R"({"bos_token_id": [1]})", R"({"do_sample": "yes"})", R"({"temperature": -0.1})",
        R"({"temperature": "hot"})", R"({"temperature": 1e300})", R"({"top_p": 0})",
        R"({"top_p": 1.1})", R"({"top_k": -2})", R"({"top_k": 2.5})", R"({"top_k": 1e9})",
        R"({"min_p": -0.1})", R"({"min_p": 1.5})", R"({"repetition_penalty": 0})"}) {
    const auto config = Read(text);
    ASSERT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr("generation_config.json"));
  }
  std::string many = R"({"eos_token_id": [0)";
  for (int i = 0; i < 64; ++i) many += ",0";
  EXPECT_EQ(Read(many + "]}").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(GenerationConfigTest, LoadsFromAFolder) {
  test_support::TempFolder folder;
  auto config = LoadGenerationConfig(folder.path(), Model());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->eos_token_ids, ElementsAre(7));
  folder.Write("generation_config.json", R"({"eos_token_id": 5})");
  EXPECT_THAT(LoadGenerationConfig(folder.path(), Model())->eos_token_ids, ElementsAre(5));
  folder.Write("generation_config.json", "[]");
  EXPECT_EQ(LoadGenerationConfig(folder.path(), Model()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace retroinfer
