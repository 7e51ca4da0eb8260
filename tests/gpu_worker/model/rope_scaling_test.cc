#include "gpu_worker/model/rope_scaling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "gpu_worker/model/model_shapes.h"

namespace retroinfer {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

ModelConfig Read(const json& changes = json::object(), const char* family = "qwen2") {
  json config = {{"model_type", family},
                 {"hidden_size", 3584},
                 {"intermediate_size", 18944},
                 {"num_attention_heads", 28},
                 {"num_hidden_layers", 28},
                 {"num_key_value_heads", 4},
                 {"vocab_size", 152064},
                 {"rope_theta", 1000000.0},
                 {"head_dim", 128},
                 {"max_position_embeddings", 32768}};
  config.update(changes);
  const auto reader = common::JsonReader::ParseObject(config.dump(), "config.json");
  EXPECT_TRUE(reader.ok()) << reader.status();
  const auto model = ReadModelConfig(*reader);
  EXPECT_TRUE(model.ok()) << model.status();
  return *model;
}

ModelConfig Scaled(const std::string& text, ModelConfig config) {
  EXPECT_TRUE(text.empty() || CheckRopeScaling(text).ok()) << text;
  EXPECT_TRUE(ApplyRopeScaling(text, config).ok()) << text;
  return config;
}

// The same numbers in config.json.
json Yarn(double factor, int64_t original) {
  return {{"rope_scaling",
           {{"rope_type", "yarn"},
            {"factor", factor},
            {"original_max_position_embeddings", original}}}};
}

TEST(RopeScalingTest, GivesWhatConfigJsonWouldGive) {
  const ModelConfig plain = Read();
  EXPECT_EQ(plain.context_length, 32768);
  for (const char* const text : {"yarn:4", "yarn:4.0", "yarn:4:32768", "yarn:4:32K"}) {
    const ModelConfig scaled = Scaled(text, plain);
    EXPECT_EQ(scaled.rope, Read(Yarn(4, 32768)).rope) << text;
    EXPECT_EQ(scaled.context_length, 131072) << text;
  }
  EXPECT_EQ(Scaled("yarn:2.5:16384", plain).rope, Read(Yarn(2.5, 16384)).rope);
  EXPECT_EQ(Scaled("yarn:2.5:16384", plain).context_length, 40960);
  EXPECT_EQ(Scaled("yarn:4:32768", Read({{"max_position_embeddings", 131072}})).context_length,
            131072);
  EXPECT_NEAR(Scaled("yarn:4", plain).rope.attention_factor, 1.138629436111989, 1e-12);
  EXPECT_EQ(Scaled("", plain).rope, plain.rope);
}

TEST(RopeScalingTest, TakesThePlaceOfWhatThereIs) {
  json settings = Yarn(4, 32768);
  settings["rope_scaling"]["beta_fast"] = 16;
  settings["rope_scaling"]["attention_factor"] = 2;
  settings["max_position_embeddings"] = 131072;
  EXPECT_EQ(Scaled("yarn:8", Read(settings)).rope, Read(Yarn(8, 32768)).rope);
  EXPECT_EQ(Scaled("yarn:8", Read(settings)).context_length, 262144);
  ModelConfig llama = *NamedModelShape("llama-3.1-8b");
  const RopeConfig before = llama.rope;
  const absl::Status status = ApplyRopeScaling("yarn:4", llama);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("another scaling"));
  EXPECT_EQ(llama.rope, before);
  EXPECT_EQ(Scaled("yarn:32:8192", llama).context_length, 262144);
}

TEST(RopeScalingTest, OtherFormsAreRefusedWithTheRightOne) {
  for (const char* const text :
       {"4", "yarn", "yarn:", "yarn:four", "yarn:nan", "yarn:inf", "yarn:0.5", "yarn:-4",
        "yarn:1e9", "yarn:4:", "yarn:4:0", "yarn:4:many", "yarn:4:1e30", "yarn:4:32768:1", "YARN:4",
        "linear:4", ":4"}) {
    ModelConfig config = Read();
    const absl::Status status = ApplyRopeScaling(text, config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(status, CheckRopeScaling(text));
    EXPECT_THAT(std::string(status.message()), HasSubstr("for example yarn:4:32768")) << text;
    EXPECT_LT(status.message().size(), 300u);
    EXPECT_EQ(config.rope, Read().rope);
  }
  EXPECT_LT(CheckRopeScaling(std::string(1 << 20, ':')).message().size(), 300u);
}

TEST(RopeScalingTest, KnowsWhichModelsMakersSayWhat) {
  EXPECT_EQ(DocumentedRopeScaling(Read()), "yarn:4:32768");
  EXPECT_EQ(DocumentedRopeScaling(Read({{"max_position_embeddings", 40960}}, "qwen3")),
            "yarn:4:32768");
  EXPECT_EQ(DocumentedRopeScaling(Read({{"max_position_embeddings", 131072}})), std::nullopt);
  EXPECT_EQ(DocumentedRopeScaling(Read({{"max_position_embeddings", 262144}}, "qwen3")),
            std::nullopt);
  EXPECT_EQ(DocumentedRopeScaling(Read({{"max_position_embeddings", 65536}}, "smollm3")),
            std::nullopt);
  EXPECT_EQ(DocumentedRopeScaling(Read(json::object(), "llama")), std::nullopt);
  EXPECT_EQ(DocumentedRopeScaling(Scaled("yarn:4", Read())), std::nullopt);
}

TEST(RopeScalingTest, LongRopeGoesByTheLengthThatIsServed) {
  const auto factors = [](double factor) { return std::vector<double>(64, factor); };
  ModelConfig config =
      Read({{"original_max_position_embeddings", 4096},
            {"rope_scaling",
             {{"type", "longrope"}, {"short_factor", factors(1)}, {"long_factor", factors(3)}}}},
           "phi3");
  EXPECT_TRUE(config.rope.serves_long);
  for (const auto& [served, is_long] :
       {std::pair<int64_t, bool>{4096, false}, {4097, true}, {1, false}, {0, true}}) {
    ServeContexts(served, config);
    EXPECT_EQ(config.rope.serves_long, is_long) << served;
  }
  EXPECT_EQ(ApplyRopeScaling("yarn:4", config).code(), absl::StatusCode::kInvalidArgument);
  ModelConfig plain = Read();
  const RopeConfig before = plain.rope;
  ServeContexts(100, plain);
  EXPECT_EQ(plain.rope, before);
}

TEST(RopeScalingTest, NoOtherScalingTakesThePlaceOfOneThatQueriesGrowBy) {
  ModelConfig config = Read({{"rope_parameters",
                              {{"rope_type", "yarn"},
                               {"factor", 16.0},
                               {"original_max_position_embeddings", 16384},
                               {"llama_4_scaling_beta", 0.1}}},
                             {"rope_theta", nullptr}},
                            "ministral3");
  const RopeConfig before = config.rope;
  EXPECT_EQ(ApplyRopeScaling("yarn:4:32768", config).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(config.rope, before);
}

}  // namespace
}  // namespace retroinfer
