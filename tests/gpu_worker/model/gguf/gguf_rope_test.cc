#include "gpu_worker/model/gguf/gguf_rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/gpu_worker/model/gguf/gguf_text.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::Floats;
using test_support::GgufText;
using ::testing::HasSubstr;

constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

class GgufRopeTest : public ::testing::Test {
 protected:
  absl::StatusOr<RopeConfig> Read(const GgufText& text) {
    const auto files = GgufFiles::Open(folder_.Write("x.gguf", text.Bytes()));
    if (!files.ok()) return files.status();
    return ReadGgufRope(*files, "llama.", 32768, 128);
  }
  void ExpectError(const GgufText& text, absl::StatusCode code, const std::string& part) {
    const auto rope = Read(text);
    EXPECT_EQ(rope.status().code(), code) << rope.status();
    EXPECT_THAT(std::string(rope.status().message()), HasSubstr(part));
  }
  // What a converter writes for a model with this RoPE.
  static GgufText Factors(const RopeConfig& rope) {
    const std::vector<float> scaled = rope.InverseFrequencies(128);
    const std::vector<float> plain = RopeConfig{.theta = rope.theta}.InverseFrequencies(128);
    std::vector<float> factors(64);
    for (size_t i = 0; i < factors.size(); ++i) factors[i] = plain[i] / scaled[i];
    return GgufText()
        .Float("llama.rope.freq_base", static_cast<float>(rope.theta))
        .Tensor("rope_freqs.weight", {64}, 0, Floats(factors));
  }

  test_support::TempFolder folder_;
};

TEST_F(GgufRopeTest, PlainRopeIsTheDefault) {
  EXPECT_EQ(*Read(GgufText()), RopeConfig{});
  EXPECT_EQ(
      *Read(GgufText().Float("llama.rope.freq_base", 5e5f).Text("llama.rope.scaling.type", "none")),
      RopeConfig{.theta = 5e5});
}

TEST_F(GgufRopeTest, Llama3sScalingIsFoundByItsFactors) {
  for (const double factor : {8.0, 32.0}) {
    const RopeConfig rope{.type = RopeConfig::Type::kLlama3,
                          .theta = 5e5,
                          .factor = factor,
                          .low_freq_factor = 1,
                          .high_freq_factor = 4,
                          .original_positions = 8192};
    EXPECT_EQ(*Read(Factors(rope)), rope);
  }
  EXPECT_EQ(*Read(Factors({.theta = 5e5})), RopeConfig{.theta = 5e5});
}

TEST_F(GgufRopeTest, OtherFactorsAreRefused) {
  RopeConfig rope{.type = RopeConfig::Type::kLlama3,
                  .theta = 5e5,
                  .factor = 8,
                  .low_freq_factor = 1,
                  .high_freq_factor = 4,
                  .original_positions = 4096};
  ExpectError(Factors(rope), kUnimplemented, "factors of RoPE that no supported scaling gives");
  ExpectError(GgufText().Tensor("rope_freqs.weight", {64}, 0,
                                Floats(std::vector<float>(64, std::nanf("")))),
              kUnimplemented, "no supported scaling");
  ExpectError(GgufText().Tensor("rope_freqs.weight", {32}, 0, Floats(std::vector<float>(32, 1))),
              absl::StatusCode::kInvalidArgument, "needs 64 factors in F32");
  ExpectError(Factors({}).Text("llama.rope.scaling.type", "yarn"), kUnimplemented, "beside");
}

TEST_F(GgufRopeTest, YarnIsWhatConfigJsonSays) {
  EXPECT_EQ(*Read(GgufText()
                      .Float("llama.rope.freq_base", 1e6f)
                      .Text("llama.rope.scaling.type", "yarn")
                      .Float("llama.rope.scaling.factor", 4)
                      .Int("llama.rope.scaling.original_context_length", 8192)),
            YarnRope(1e6, 4, 8192));
  // Without the original context: the model's.
  const auto rope = Read(GgufText()
                             .Text("llama.rope.scaling.type", "yarn")
                             .Float("llama.rope.scaling.factor", 2)
                             .Float("llama.rope.scaling.yarn_beta_fast", 16)
                             .Float("llama.rope.scaling.yarn_attn_factor", 0.5f)
                             .Float("llama.rope.scaling.yarn_ext_factor", -1));
  ASSERT_TRUE(rope.ok()) << rope.status();
  EXPECT_EQ(rope->original_positions, 32768);
  EXPECT_EQ(rope->beta_fast, 16);
  EXPECT_EQ(rope->attention_factor, YarnRope(1e4, 2, 32768).attention_factor / 2);
}

TEST_F(GgufRopeTest, LinearScalingHasTwoForms) {
  const RopeConfig linear{.type = RopeConfig::Type::kLinear, .factor = 4};
  EXPECT_EQ(*Read(GgufText()
                      .Text("llama.rope.scaling.type", "linear")
                      .Float("llama.rope.scaling.factor", 4)),
            linear);
  EXPECT_EQ(*Read(GgufText().Float("llama.rope.scale_linear", 4)), linear);
}

TEST_F(GgufRopeTest, OtherScalingsAreRefusedByName) {
  ExpectError(GgufText().Text("llama.rope.scaling.type", "longrope"), kUnimplemented,
              "\"longrope\" is not supported; none, linear and yarn are");
  ExpectError(GgufText().Int("llama.rope.dimension_count", 64), kUnimplemented,
              "is 64 of heads of 128 dimensions");
  ExpectError(GgufText()
                  .Text("llama.rope.scaling.type", "yarn")
                  .Float("llama.rope.scaling.factor", 2)
                  .Float("llama.rope.scaling.yarn_log_multiplier", 0.1f),
              kUnimplemented, "yarn_log_multiplier");
  ExpectError(GgufText().Text("llama.rope.scaling.type", "linear"),
              absl::StatusCode::kInvalidArgument, "llama.rope.scaling.factor\": is missing");
}

}  // namespace
}  // namespace retroinfer
