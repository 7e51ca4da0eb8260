// Golden files have the tokenizers of tests/golden/tokenizer: of the same vocabulary, read from a
// GGUF file and from tokenizer.json, texts must have the same ids.
#include "gpu_worker/model/gguf/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/gpu_worker/model/gguf/gguf_text.h"
#include "tests/gpu_worker/model/gguf/golden_gguf.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::GgufText;
using test_support::GoldenGgufModel;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct GoldenCase {
  const char* model;
  const char* folder;
};

class GoldenGgufTokenizerTest : public ::testing::TestWithParam<GoldenCase> {};

// Whether a text has a token that takes white space in, or wants words: files do not say so.
bool NeedsMore(const std::string& text) {
  for (const char* const token : {"<mask>", "<|tail|>", "wordy", "Caf", "Bar"}) {
    if (text.find(token) != std::string::npos) return true;
  }
  return false;
}

TEST_P(GoldenGgufTokenizerTest, IdsAreThoseOfTheFolder) {
  const std::string golden = std::string(RETROINFER_SOURCE_DIR) + "/tests/golden/tokenizer/";
  const auto folder = Tokenizer::Load(golden + GetParam().folder);
  ASSERT_TRUE(folder.ok()) << folder.status();
  const auto files = GgufFiles::Open(GoldenGgufModel(GetParam().model));
  ASSERT_TRUE(files.ok()) << files.status();
  const auto tokenizer = ReadGgufTokenizer(*files);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), (*folder)->vocab_size());
  size_t num_compared = 0;
  std::ifstream lines(golden + "encodings.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const auto example = nlohmann::json::parse(line);
    const std::string text = example[1].get<std::string>();
    if (NeedsMore(text)) continue;
    const EncodeOptions options{.parse_special = example[0].get<std::string>() == "p"};
    const auto expected = (*folder)->Encode(text, options);
    const auto ids = (*tokenizer)->Encode(text, options);
    ASSERT_TRUE(ids.ok()) << ids.status();
    ASSERT_EQ(*ids, *expected) << text;
    EXPECT_EQ((*tokenizer)->Decode(*ids, true), (*folder)->Decode(*ids, true));
    ++num_compared;
  }
  EXPECT_GT(num_compared, 4000u);
}

INSTANTIATE_TEST_SUITE_P(, GoldenGgufTokenizerTest,
                         ::testing::Values(GoldenCase{"llama", "llama"},
                                           GoldenCase{"qwen2", "qwen"}),
                         [](const auto& info) { return std::string(info.param.model); });

// Bytes a, b and <|end|>, and a merge.
GgufText SmallTokenizer() {
  return GgufText().Text("tokenizer.ggml.model", "gpt2").Texts("tokenizer.ggml.merges", {"a b"});
}

GgufText WithTokens(GgufText text) {
  return text.Text("tokenizer.ggml.pre", "gpt-2")
      .Texts("tokenizer.ggml.tokens", {"a", "b", "ab", "<|end|>", "<tool_call>", "[PAD5]"})
      .Ints("tokenizer.ggml.token_type", {1, 1, 1, 3, 3, 5});
}

class GgufTokenizerTest : public ::testing::Test {
 protected:
  GgufFiles Files(const GgufText& text) {
    return GgufFiles::Open(folder_.Write("x.gguf", text.Bytes())).value();
  }
  void ExpectError(const GgufText& text, absl::StatusCode code, const std::string& part) {
    const auto tokenizer = ReadGgufTokenizer(Files(text));
    EXPECT_EQ(tokenizer.status().code(), code) << tokenizer.status();
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("x.gguf"));
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(part));
  }

  test_support::TempFolder folder_;
};

TEST_F(GgufTokenizerTest, ControlTokensAreSpecialAndUnusedIdsAreNone) {
  const auto tokenizer = ReadGgufTokenizer(Files(WithTokens(SmallTokenizer())));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 5);
  EXPECT_TRUE((*tokenizer)->IsSpecial(3));
  // What a model calls is to be seen.
  EXPECT_FALSE((*tokenizer)->IsSpecial(4));
  EXPECT_THAT(*(*tokenizer)->Encode("abb<|end|>", {.parse_special = true}), ElementsAre(2, 1, 3));
  EXPECT_THAT(*(*tokenizer)->Encode("a<tool_call>"), ElementsAre(0, 4));
}

TEST_F(GgufTokenizerTest, WhatStandsAroundATextIsWhatTheKeysSay) {
  const auto encode = [&](const GgufText& text) {
    const auto tokenizer = ReadGgufTokenizer(Files(text));
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return (*tokenizer)->Encode("ab").value();
  };
  EXPECT_THAT(encode(WithTokens(SmallTokenizer()).Int("tokenizer.ggml.bos_token_id", 3)),
              ElementsAre(2));
  EXPECT_THAT(encode(WithTokens(SmallTokenizer())
                         .Int("tokenizer.ggml.bos_token_id", 3)
                         .Bool("tokenizer.ggml.add_bos_token", true)),
              ElementsAre(3, 2));
  EXPECT_THAT(encode(WithTokens(SmallTokenizer())
                         .Int("tokenizer.ggml.eos_token_id", 3)
                         .Bool("tokenizer.ggml.add_eos_token", true)),
              ElementsAre(2, 3));
}

TEST_F(GgufTokenizerTest, TemplatesAndTheirTokensAreTheFiles) {
  const auto config =
      ReadGgufTokenizerConfig(Files(WithTokens(SmallTokenizer())
                                        .Int("tokenizer.ggml.eos_token_id", 3)
                                        .Int("tokenizer.ggml.padding_token_id", 2)
                                        .Text("tokenizer.chat_template", "default")
                                        .Texts("tokenizer.chat_templates", {"rag", "tool_use"})
                                        .Text("tokenizer.chat_template.tool_use", "with tools")));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->eos_token, "<|end|>");
  EXPECT_FALSE(config->bos_token.has_value());
  EXPECT_EQ(config->chat_template, "default");
  EXPECT_EQ(config->tool_template, "with tools");
  EXPECT_EQ(config->template_source, "x.gguf");
  EXPECT_THAT(config->special_tokens,
              ElementsAre(std::pair<std::string, std::string>("eos_token", "<|end|>"),
                          std::pair<std::string, std::string>("pad_token", "ab")));
}

TEST_F(GgufTokenizerTest, OtherTokenizersAreRefusedByName) {
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  ExpectError(GgufText().Text("tokenizer.ggml.model", "llama"), kUnimplemented,
              "\"llama\" (SentencePiece, as older Llamas and Mistrals have it) is not supported");
  ExpectError(GgufText().Text("tokenizer.ggml.model", "bert"), kUnimplemented, "WordPiece");
  ExpectError(SmallTokenizer()
                  .Text("tokenizer.ggml.pre", "kimi-k2")
                  .Texts("tokenizer.ggml.tokens", {"a", "b", "ab"})
                  .Ints("tokenizer.ggml.token_type", {1, 1, 1}),
              kUnimplemented, "tokenizer.ggml.pre\": \"kimi-k2\" is not supported");
  ExpectError(WithTokens(SmallTokenizer()).Bool("tokenizer.ggml.add_space_prefix", true),
              kUnimplemented, "add_space_prefix");
}

TEST_F(GgufTokenizerTest, WhatIsWrongIsRefusedWithTheKey) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto tokens = [](const std::vector<std::string>& tokens,
                         const std::vector<int32_t>& types) {
    return SmallTokenizer()
        .Text("tokenizer.ggml.pre", "gpt-2")
        .Texts("tokenizer.ggml.tokens", tokens)
        .Ints("tokenizer.ggml.token_type", types);
  };
  ExpectError(GgufText(), kInvalid, "tokenizer.ggml.model\": is missing");
  ExpectError(SmallTokenizer().Texts("tokenizer.ggml.tokens", {"a", "b", "ab"}), kInvalid,
              "tokenizer.ggml.token_type\": is missing");
  ExpectError(SmallTokenizer()
                  .Texts("tokenizer.ggml.tokens", {"a", "b", "ab"})
                  .Ints("tokenizer.ggml.token_type", {1, 1, 1}),
              kInvalid, "tokenizer.ggml.pre\": is missing, as in files from before May 2024");
  ExpectError(tokens({"a", "b", "ab"}, {1, 1}), kInvalid, "has 2 entries for 3 tokens");
  ExpectError(tokens({"a", "b", "ab"}, {1, 1, 6}), kInvalid, "token 2 has type 6");
  ExpectError(tokens({"a", "b", ""}, {1, 1, 1}), kInvalid, "token 2 has 0 bytes");
  ExpectError(tokens({"a", "b", "\xff"}, {1, 1, 1}), kInvalid, "of UTF-8");
  ExpectError(tokens({"a", "b", "a"}, {1, 1, 1}), kInvalid, "the token \"a\" occurs twice");
  ExpectError(tokens({"a", "b"}, {1, 1}), kInvalid, "merge 0: the vocabulary lacks \"ab\"");
  ExpectError(GgufText()
                  .Text("tokenizer.ggml.model", "gpt2")
                  .Texts("tokenizer.ggml.tokens", {"a"})
                  .Ints("tokenizer.ggml.token_type", {1})
                  .Texts("tokenizer.ggml.merges", {"a b", "abc"}),
              kInvalid, "merge 1 needs to be two tokens");
  ExpectError(WithTokens(SmallTokenizer()).Bool("tokenizer.ggml.add_bos_token", true), kInvalid,
              "tokenizer.ggml.bos_token_id\": is missing");
  ExpectError(WithTokens(SmallTokenizer()).Int("tokenizer.ggml.eos_token_id", 6), kInvalid,
              "is 6; needs 0 to 5");
}

}  // namespace
}  // namespace retroinfer
