#include "text/constraint/token_vocabulary.h"

#include <gtest/gtest.h>

#include "build_paths.h"
#include "tests/text/constraint/constraint_fixtures.h"

namespace retroinfer::constraint {
namespace {

TEST(TokenVocabularyTest, SpecialTokensHaveBytesThatNoTextHas) {
  const auto vocabulary = BpeVocabulary();
  EXPECT_EQ(vocabulary->BytesOf(kBpeSpecial), "\xFF<|call|>");
  EXPECT_EQ(vocabulary->BytesOf(kBpeTag), "<tool>");
  EXPECT_EQ(vocabulary->BytesOf(kBpeEnd), "");
  EXPECT_TRUE(vocabulary->IsEnd(kBpeEnd));
  EXPECT_FALSE(vocabulary->IsEnd(kBpeSpecial));
  EXPECT_EQ(vocabulary->SpecialBytes("<|call|>"), "\xFF<|call|>");
  EXPECT_EQ(vocabulary->SpecialBytes("<|call"), std::nullopt);
  EXPECT_EQ(vocabulary->SpecialBytes("<tool>"), std::nullopt);
  EXPECT_EQ(vocabulary->SpecialBytes("<|end|>"), std::nullopt);
  EXPECT_EQ(vocabulary->SpecialBytes(""), std::nullopt);
  EXPECT_EQ(vocabulary->BytesOf(0xFF), "");  // no text has this byte
  EXPECT_EQ(vocabulary->BytesOf(-1), "");
  EXPECT_EQ(vocabulary->BytesOf(1'000'000), "");
}

TEST(TokenVocabularyTest, EndTokensOutsideOfTheModelAreLeftOut) {
  const auto vocabulary =
      TokenVocabulary::Create(*CreateByteTokenizer(), {5, -1, 300, 5, 257}, 258);
  EXPECT_EQ(vocabulary->end_token_ids(), (std::vector<int32_t>{5, 257}));
  EXPECT_EQ(vocabulary->mask_words(), 9u);
  EXPECT_EQ(vocabulary->BytesOf(5), "");
}

TEST(TokenVocabularyTest, TokensOfTheSentencePieceKindAreTheirBytes) {
  const std::string folder = RETROINFER_SOURCE_DIR "/tests/golden/tokenizer/fallback/lines";
  const auto tokenizer = Tokenizer::Load(folder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto vocabulary = TokenVocabulary::Create(**tokenizer, {2}, (*tokenizer)->vocab_size());
  const auto bytes_of = [&](std::string_view token) {
    return vocabulary->BytesOf((*tokenizer)->TokenId(token).value_or(-1));
  };
  EXPECT_EQ(bytes_of("<0x0A>"), "\n");
  EXPECT_EQ(bytes_of("<0xE2>"), "\xE2");
  EXPECT_EQ(bytes_of("<0xFF>"), "");  // no text has this byte
  EXPECT_EQ(bytes_of("\u2581\u2581"), "  ");
  EXPECT_EQ(bytes_of("\u2581the"), " the");
  EXPECT_EQ(bytes_of("\n\n"), "\n\n");
  EXPECT_EQ(bytes_of("<s>"), "\xFF<s>");
}

TEST(TokenVocabularyTest, ASetAndItsRestAreAllTokens) {
  const auto vocabulary = BpeVocabulary();
  const auto tokenizer = BpeTokenizer();
  for (size_t i = 0; i < kNumTextSets; ++i) {
    const auto set = static_cast<TextSet>(i);
    size_t members = 0;
    for (const uint32_t word : vocabulary->MaskOf(set)) {
      members += static_cast<size_t>(__builtin_popcount(word));
    }
    EXPECT_EQ(members + vocabulary->TrieWithout(set).num_tokens(), vocabulary->trie().num_tokens());
  }
  const auto& json = vocabulary->MaskOf(TextSet::kJsonText);
  EXPECT_TRUE(IsSet(json, *tokenizer->TokenId("abc")));
  EXPECT_TRUE(IsSet(json, kBpeTag));
  EXPECT_FALSE(IsSet(json, '"'));
  EXPECT_FALSE(IsSet(json, 0xC3));
  EXPECT_FALSE(IsSet(json, kBpeSpecial));
  EXPECT_FALSE(IsSet(vocabulary->MaskOf(TextSet::kNoAngle), kBpeTag));
  EXPECT_EQ(vocabulary->text_characters_max(), 6u);  // <tool>
}

}  // namespace
}  // namespace retroinfer::constraint
