#include "gpu_worker/model/rope_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace retroinfer {
namespace {

using ::testing::HasSubstr;
using Values = std::vector<std::pair<size_t, float>>;

absl::StatusOr<RopeConfig> Read(const std::string& text, int64_t max_positions = 4096) {
  const auto json = common::JsonReader::ParseObject(text, "config.json");
  EXPECT_TRUE(json.ok()) << json.status();
  return ReadRopeConfig(*json, max_positions);
}

// `expected` were printed by Hugging Face transformers 5.
void ExpectFrequencies(const RopeConfig& rope, uint32_t head_dim, const Values& expected) {
  const std::vector<float> got = rope.InverseFrequencies(head_dim);
  ASSERT_EQ(got.size(), head_dim / 2);
  for (const auto& [index, value] : expected) {
    // transformers rounds to f32 at each step, we once.
    EXPECT_NEAR(got[index] / value, 1.0, 1e-6) << index;
  }
}

void ExpectError(const std::string& text, absl::StatusCode code, const std::string& part) {
  const auto rope = Read(text);
  ASSERT_EQ(rope.status().code(), code) << text << ": " << rope.status();
  EXPECT_THAT(std::string(rope.status().message()), HasSubstr(part)) << text;
  EXPECT_THAT(std::string(rope.status().message()), HasSubstr("config.json")) << text;
}

TEST(RopeConfigTest, DefaultIsPlainRope) {
  for (const char* text : {R"({"rope_theta": 500000.0})", R"({"rope_theta": 500000})",
                           R"({"rope_theta": 500000.0, "rope_scaling": null})",
                           R"({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})",
                           R"({"rope_theta": 5e5, "rope_scaling": {"type": "default"}})",
                           R"({"rope_theta": 5e5, "rope_scaling": {}})",
                           R"({"rope_theta": 5e5, "rope_parameters": {}, "rope_scaling": null})",
                           R"({"rope_parameters": {"rope_theta": 5e5}})",
                           R"({"rope_parameters": {"rope_theta": 5e5, "factor": null,
                               "partial_rotary_factor": 1.0}})",
                           R"({"rope_parameters": {"rope_type": "default"}, "rope_theta": 500000,
                               "rope_scaling": {"rope_type": "default", "rope_theta": 5e5}})"}) {
    const auto rope = Read(text);
    ASSERT_TRUE(rope.ok()) << rope.status();
    EXPECT_EQ(*rope, RopeConfig{.theta = 500000.0}) << text;
    const auto frequencies = rope->InverseFrequencies(64);
    EXPECT_EQ(frequencies[0], 1.0f);
    EXPECT_FLOAT_EQ(frequencies[16], 1.0 / std::sqrt(500000.0));
    EXPECT_EQ(rope->ContextLength(4096), 4096);
  }
  EXPECT_EQ(Read("{}")->theta, 10000.0);
}

TEST(RopeConfigTest, Llama31) {
  const auto rope = Read(
      R"({"rope_theta": 500000.0, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
          "rope_type": "llama3"}})");
  ASSERT_TRUE(rope.ok()) << rope.status();
  EXPECT_EQ(rope->type, RopeConfig::Type::kLlama3);
  EXPECT_EQ(rope->attention_factor, 1.0);
  EXPECT_EQ(rope->ContextLength(131072), 131072);
  ExpectFrequencies(*rope, 128,
                    {{0, 1.0f},
                     {1, 0.8146172165870667f},
                     {16, 0.03760603070259094f},
                     {28, 0.0032114461064338684f},
                     {30, 0.0013718936825171113f},
                     {32, 0.0005248460220173001f},
                     {34, 0.0001785077911335975f},
                     {36, 7.784655463183299e-05f},
                     {40, 3.428102354519069e-05f},
                     {63, 3.068925877869333e-07f}});
}

TEST(RopeConfigTest, Llama32InTheNewForm) {
  const auto rope = Read(
      R"({"rope_parameters": {"rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
          "rope_type": "llama3"}})");
  ASSERT_TRUE(rope.ok()) << rope.status();
  ExpectFrequencies(*rope, 64,
                    {{0, 1.0f},
                     {1, 0.663601279258728f},
                     {8, 0.03760603070259094f},
                     {14, 0.0032114461064338684f},
                     {15, 0.0012905480107292533f},
                     {16, 0.000429556705057621f},
                     {17, 9.708286233944818e-05f},
                     {18, 1.9461638657958247e-05f},
                     {20, 8.570255886297673e-06f},
                     {31, 9.418306490260875e-08f}});
}

TEST(RopeConfigTest, YarnAsQwenDocumentsIt) {
  const auto rope = Read(
      R"({"rope_theta": 1000000.0, "rope_scaling": {"factor": 4.0,
          "original_max_position_embeddings": 32768, "type": "yarn"}})",
      32768);
  ASSERT_TRUE(rope.ok()) << rope.status();
  EXPECT_EQ(rope->type, RopeConfig::Type::kYarn);
  EXPECT_NEAR(rope->attention_factor, 1.138629436111989, 1e-12);
  EXPECT_EQ(rope->ContextLength(32768), 131072);
  EXPECT_EQ(rope->ContextLength(131072), 131072);
  ExpectFrequencies(*rope, 128,
                    {{0, 1.0f},
                     {1, 0.8058422207832336f},
                     {16, 0.03162277862429619f},
                     {28, 0.0018482765881344676f},
                     {30, 0.0010643609566614032f},
                     {32, 0.0006029411451891065f},
                     {34, 0.00033424055436626077f},
                     {36, 0.0001798411540221423f},
                     {40, 4.4456985051510856e-05f},
                     {63, 3.102344408034696e-07f}});
}

TEST(RopeConfigTest, YarnOptions) {
  const auto rope = Read(
      R"({"rope_scaling": {"factor": 4.0, "rope_type": "yarn", "attention_factor": 1.5,
          "beta_fast": 16, "beta_slow": 2, "truncate": false}})",
      2048);
  ASSERT_TRUE(rope.ok()) << rope.status();
  EXPECT_EQ(rope->attention_factor, 1.5);
  EXPECT_EQ(rope->beta_fast, 16);
  EXPECT_EQ(rope->beta_slow, 2);
  EXPECT_FALSE(rope->truncate);
  EXPECT_EQ(rope->original_positions, 2048);
  const auto scaled = Read(
      R"({"rope_scaling": {"factor": 4.0, "rope_type": "yarn", "mscale": 2, "mscale_all_dim": 1}})");
  const double log4 = std::log(4.0);
  EXPECT_NEAR(scaled->attention_factor, (0.2 * log4 + 1) / (0.1 * log4 + 1), 1e-12);
}

TEST(RopeConfigTest, LinearDividesPositions) {
  const auto rope = Read(R"({"rope_scaling": {"type": "linear", "factor": 4}})");
  ASSERT_TRUE(rope.ok()) << rope.status();
  EXPECT_EQ(rope->ContextLength(4096), 16384);
  ExpectFrequencies(*rope, 128,
                    {{0, 0.25f}, {1, 0.21649108827114105f}, {63, 2.8869548259535804e-05f}});
}

std::string LongRope(const char* type, const std::string& more = "") {
  std::string of_short, of_long;
  for (int i = 0; i < 48; ++i) {
    const char* const between = i == 0 ? "" : ", ";
    absl::StrAppend(&of_short, between, 1 + 0.01 * i);
    absl::StrAppend(&of_long, between, 1 + 0.5 * i);
  }
  return absl::StrCat(
      R"({"rope_theta": 10000.0, "partial_rotary_factor": 0.75, "rope_scaling": {"type": ")", type,
      R"(", "short_factor": [)", of_short, R"(], "long_factor": [)", of_long, "]", more,
      R"(}, "original_max_position_embeddings": 4096})");
}

TEST(RopeConfigTest, LongRopeHasFactorsForShortAndForLongContexts) {
  constexpr RopeOfFamily kPhi = {.may_be_partial = true, .is_long = true};
  for (const char* const type : {"longrope", "su", "yarn"}) {
    const auto json = common::JsonReader::ParseObject(LongRope(type), "config.json");
    auto rope = ReadRopeConfig(*json, 131072, kPhi);
    ASSERT_TRUE(rope.ok()) << rope.status();
    EXPECT_EQ(rope->type, RopeConfig::Type::kLong);
    EXPECT_NEAR(rope->attention_factor, 1.1902380714238083, 1e-12);
    EXPECT_TRUE(rope->serves_long);
    EXPECT_EQ(rope->ContextLength(131072), 131072);
    EXPECT_EQ(rope->RotatedDims(128), 96u);
    const auto of_long = rope->InverseFrequencies(128);
    rope->serves_long = false;
    const auto of_short = rope->InverseFrequencies(128);
    ASSERT_EQ(of_long.size(), 48u);
    ASSERT_EQ(of_short.size(), 48u);
    for (const auto& [i, small, large] : {std::tuple{0u, 1.0f, 1.0f},
                                          {1u, 0.8172318339347839f, 0.5502694249153137f},
                                          {23u, 0.009849818423390388f, 0.0009692222229205072f},
                                          {47u, 8.24168382678181e-05f, 4.945010459778132e-06f}}) {
      EXPECT_NEAR(of_short[i] / small, 1, 1e-6) << i;
      EXPECT_NEAR(of_long[i] / large, 1, 1e-6) << i;
    }
  }
  const auto short_one = common::JsonReader::ParseObject(LongRope("longrope"), "config.json");
  const auto rope = ReadRopeConfig(*short_one, 4096, kPhi);
  EXPECT_FALSE(rope->serves_long);
  EXPECT_EQ(rope->attention_factor, 1);
  const auto scaled =
      common::JsonReader::ParseObject(LongRope("longrope", R"(, "short_mscale": 1.2)"), "c.json");
  EXPECT_EQ(ReadRopeConfig(*scaled, 131072, kPhi).status().code(),
            absl::StatusCode::kUnimplemented);
  // Other families' yarn is YaRN, and they have no LongRoPE.
  ExpectError(R"({"rope_scaling": {"type": "longrope", "factor": 2.0}})",
              absl::StatusCode::kUnimplemented, "longrope");
}

TEST(RopeConfigTest, QueriesOfMinistral3Grow) {
  const auto json = common::JsonReader::ParseObject(
      R"({"rope_parameters": {"type": "yarn", "rope_theta": 1e6, "factor": 16.0,
          "original_max_position_embeddings": 16384, "mscale": 1.0, "mscale_all_dim": 1.0,
          "llama_4_scaling_beta": 0.1}})",
      "config.json");
  const auto rope = ReadRopeConfig(*json, 262144, {.may_grow = true});
  ASSERT_TRUE(rope.ok()) << rope.status();
  EXPECT_EQ(rope->query_growth, 0.1);
  EXPECT_EQ(rope->attention_factor, 1);
  EXPECT_EQ(ReadRopeConfig(*json, 262144).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(RopeConfigTest, UnsupportedTypesAreUnimplemented) {
  constexpr auto kCode = absl::StatusCode::kUnimplemented;
  for (const char* type : {"dynamic", "longrope", "mrope", "su", "", "LLAMA3"}) {
    ExpectError(std::string(R"({"rope_scaling": {"factor": 2, "type": ")") + type + "\"}}", kCode,
                "default, linear, llama3 and yarn are");
  }
  ExpectError(R"({"partial_rotary_factor": 0.5})", kCode, "partial_rotary_factor");
  ExpectError(R"({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}})",
              kCode, "partial_rotary_factor");
  ExpectError(R"({"rope_parameters": {"rope_type": "yarn", "factor": 16, "rope_theta": 1e6,
                                      "llama_4_scaling_beta": 0.1}})",
              kCode, "llama_4_scaling_beta 0.1");
  ExpectError(R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})", kCode,
              "layer types");
}

TEST(RopeConfigTest, WrongValuesAreInvalid) {
  constexpr auto kCode = absl::StatusCode::kInvalidArgument;
  ExpectError(R"({"rope_theta": "big"})", kCode, "rope_theta");
  ExpectError(R"({"rope_theta": 0})", kCode, "rope_theta");
  ExpectError(R"({"rope_theta": -1.0})", kCode, "rope_theta");
  ExpectError(R"({"rope_theta": 1e300})", kCode, "rope_theta");
  ExpectError(R"({"rope_scaling": []})", kCode, "rope_scaling");
  ExpectError(R"({"rope_scaling": {"factor": 4}})", kCode, "rope_type");
  ExpectError(R"({"rope_parameters": {"rope_theta": 1e6, "beta_fast": 32}})", kCode, "rope_type");
  ExpectError(R"({"rope_scaling": {"type": 4}})", kCode, "type");
  ExpectError(R"({"rope_scaling": {"type": "linear"}})", kCode, "factor");
  ExpectError(R"({"rope_scaling": {"type": "linear", "factor": 0}})", kCode, "factor");
  ExpectError(R"({"rope_scaling": {"type": "linear", "factor": 1e30}})", kCode, "factor");
  ExpectError(R"({"rope_scaling": {"type": "llama3", "factor": 8}})", kCode, "low_freq_factor");
  ExpectError(R"({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4,
                  "high_freq_factor": 4, "original_max_position_embeddings": 8192}})",
              kCode, "high_freq_factor");
  ExpectError(R"({"rope_scaling": {"type": "yarn", "factor": 4,
                  "original_max_position_embeddings": 0}})",
              kCode, "original_max_position_embeddings");
  ExpectError(R"({"rope_scaling": {"type": "yarn", "factor": 4, "attention_factor": 0}})", kCode,
              "attention_factor");
  ExpectError(R"({"partial_rotary_factor": "half"})", kCode, "partial_rotary_factor");
}

TEST(RopeConfigTest, BothFormsMayBeThereIfTheyMeanTheSame) {
  const auto rope = Read(
      R"({"rope_theta": 1000000, "rope_scaling": {"type": "yarn", "factor": 4},
          "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6,
                              "original_max_position_embeddings": 32768, "beta_fast": 32}})",
      32768);
  ASSERT_TRUE(rope.ok()) << rope.status();
  EXPECT_EQ(*rope, YarnRope(1e6, 4, 32768));
}

TEST(RopeConfigTest, ContradictionsAreInvalid) {
  constexpr auto kCode = absl::StatusCode::kInvalidArgument;
  ExpectError(R"({"rope_theta": 1e6, "rope_parameters": {"rope_theta": 1e4,
                  "rope_type": "default"}})",
              kCode, "contradicts");
  ExpectError(R"({"rope_scaling": {"type": "linear", "factor": 4},
                  "rope_parameters": {"rope_type": "default"}})",
              kCode, "contradicts");
  ExpectError(R"({"rope_scaling": {"type": "yarn", "factor": 4, "rope_theta": 1e6},
                  "rope_parameters": {"rope_type": "yarn", "factor": 4, "rope_theta": 1e5}})",
              kCode, "contradicts");
}

}  // namespace
}  // namespace retroinfer
