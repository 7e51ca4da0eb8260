#include "gpu_worker/model/gguf/gguf_pre_tokenizers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/regex_syntax.h"

namespace retroinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Pieces(const std::string& name, const std::string& text) {
  const auto named = GgufPreTokenizerNamed(name);
  EXPECT_TRUE(named.ok()) << named.status();
  std::vector<SplitSpec> splits;
  for (const std::string_view pattern : named->patterns) {
    splits.push_back({.pattern = TranslateRegex(pattern).value()});
  }
  const PreTokenizer tokenizer = PreTokenizer::Create(splits).value();
  PreTokenizer::Run run(tokenizer);
  const auto pieces = run.Split(text);
  EXPECT_TRUE(pieces.ok()) << pieces.status();
  return {(*pieces)->begin(), (*pieces)->end()};
}

TEST(GgufPreTokenizersTest, EachCutsAsItsModelsDo) {
  const std::string text = "I'M 12345 fooBar//x";
  EXPECT_THAT(Pieces("llama-bpe", text),
              ElementsAre("I", "'M", " ", "123", "45", " fooBar", "//", "x"));
  EXPECT_THAT(Pieces("qwen2", text),
              ElementsAre("I", "'M", " ", "1", "2", "3", "4", "5", " fooBar", "//", "x"));
  EXPECT_THAT(Pieces("gpt-2", text), ElementsAre("I", "'", "M", " 12345", " fooBar", "//", "x"));
  EXPECT_THAT(Pieces("smollm", text),
              ElementsAre("I", "'", "M", " ", "1", "2", "3", "4", "5", " fooBar", "//", "x"));
  EXPECT_THAT(Pieces("tekken", text),
              ElementsAre("I", "'M", " ", "1", "2", "3", "4", "5", " foo", "Bar", "//", "x"));
  EXPECT_THAT(Pieces("default", text),
              ElementsAre("I", "'", "M", " ", "123", "45", " fooBar", "//", "x"));
}

TEST(GgufPreTokenizersTest, SettingsAreThoseOfTheModels) {
  EXPECT_TRUE(GgufPreTokenizerNamed("llama-bpe")->ignore_merges);
  EXPECT_TRUE(GgufPreTokenizerNamed("llama-bpe")->add_bos);
  EXPECT_FALSE(GgufPreTokenizerNamed("llama-bpe")->nfc);
  EXPECT_TRUE(GgufPreTokenizerNamed("qwen2")->nfc);
  EXPECT_FALSE(GgufPreTokenizerNamed("qwen2")->add_bos);
}

TEST(GgufPreTokenizersTest, UnknownNamesAreRefused) {
  const auto named = GgufPreTokenizerNamed("kimi-k2");
  EXPECT_EQ(named.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(named.status().message()),
              HasSubstr("\"kimi-k2\" is not supported; known are default, gpt-2"));
}

}  // namespace
}  // namespace retroinfer
