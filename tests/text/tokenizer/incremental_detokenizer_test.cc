#include "text/tokenizer/incremental_detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/text/tokenizer/tokenizer_fixtures.h"

namespace retroinfer {
namespace {

std::unique_ptr<Tokenizer> ByteTokenizer() {
  TokenizerSpec spec;
  spec.model = TinyModel({});
  spec.added_tokens = {{.id = 256, .content = "<s>", .special = true}};
  auto tokenizer = Tokenizer::Create(spec, {});
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

TEST(IncrementalDetokenizerTest, CharactersComeWhole) {
  const auto tokenizer = ByteTokenizer();
  IncrementalDetokenizer detokenizer(*tokenizer, true);
  EXPECT_EQ(detokenizer.Append('a'), "a");
  EXPECT_EQ(detokenizer.Append(0xF0), "");
  EXPECT_EQ(detokenizer.Append(0x9F), "");
  EXPECT_EQ(detokenizer.Append(256), "");   // a special token between the bytes
  EXPECT_EQ(detokenizer.Append(9999), "");  // no token at all
  EXPECT_EQ(detokenizer.Append(0x98), "");
  EXPECT_EQ(detokenizer.Append(0x80), "\U0001F600");
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(IncrementalDetokenizerTest, SpecialTokensThatAreShownAreInTheText) {
  const auto tokenizer = ByteTokenizer();
  IncrementalDetokenizer detokenizer(*tokenizer, true, {256});
  EXPECT_EQ(detokenizer.Append(256), "<s>");
  EXPECT_EQ(detokenizer.Append('a'), "a");
}

TEST(IncrementalDetokenizerTest, WhatCannotBecomeACharacterIsReplaced) {
  const auto tokenizer = ByteTokenizer();
  const std::string f(kReplacementCharacter);
  IncrementalDetokenizer detokenizer(*tokenizer, false);
  EXPECT_EQ(detokenizer.Append(0x80), f);
  EXPECT_EQ(detokenizer.Append(0xE2), "");
  EXPECT_EQ(detokenizer.Append('x'), f + "x");
  EXPECT_EQ(detokenizer.Append(0xE2), "");
  EXPECT_EQ(detokenizer.Append(256), f + "<s>");
  EXPECT_EQ(detokenizer.Append(0xE2), "");
  EXPECT_EQ(detokenizer.Append(0x82), "");
  EXPECT_EQ(detokenizer.Flush(), f);
  EXPECT_EQ(detokenizer.Flush(), "");
  EXPECT_EQ(detokenizer.Append('y'), "y");
}

TEST(IncrementalDetokenizerTest, ThePartsAreTheWhole) {
  const auto tokenizer = GoldenTokenizer("qwen", {});
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    std::vector<int32_t> ids(random() % 60);
    for (int32_t& id : ids) {
      id = static_cast<int32_t>(random() % static_cast<uint32_t>(tokenizer->vocab_size()));
    }
    const bool skip_special = round % 2 == 0;
    IncrementalDetokenizer detokenizer(*tokenizer, skip_special);
    std::string text;
    for (const int32_t id : ids) {
      const std::string part = detokenizer.Append(id);
      ASSERT_TRUE(ValidateUtf8(part).ok());
      text += part;
    }
    text += detokenizer.Flush();
    ASSERT_EQ(text, tokenizer->Decode(ids, skip_special));
  }
}

}  // namespace
}  // namespace retroinfer
