#include "text/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "absl/strings/str_replace.h"
#include "tests/text/tokenizer/tokenizer_fixtures.h"
#include "text/tokenizer/incremental_detokenizer.h"
#include "text/tokenizer/nfc.h"

namespace retroinfer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TokenizerSpec TinySpec() {
  TokenizerSpec spec;
  spec.model = TinyModel({{"a", "b"}, {"ab", "ab"}, {"c", "d"}});  // 256: ab, 257: abab, 258: cd
  spec.splits = {{.pattern = *TranslateRegex(R"(\s+)")}};
  spec.added_tokens = {{.id = 300, .content = "<s>", .special = true},
                       {.id = 301, .content = "<tool>"},
                       {.id = 302, .content = "e\u0301", .normalized = true}};
  spec.prefix = {300};
  spec.suffix = {301};
  return spec;
}

std::unique_ptr<Tokenizer> Create(const TokenizerSpec& spec) {
  auto tokenizer = Tokenizer::Create(spec, {.bos_token = "<s>", .eos_token = "absent"});
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::string CreateError(const TokenizerSpec& spec) {
  const absl::Status status = Tokenizer::Create(spec, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return Message(status);
}

TEST(TokenizerTest, OptionsDecideOnSpecialTokens) {
  const auto tokenizer = Create(TinySpec());
  EXPECT_THAT(*tokenizer->Encode("abab"), ElementsAre(300, 257, 301));
  EXPECT_THAT(*tokenizer->Encode(""), ElementsAre(300, 301));
  EXPECT_THAT(*tokenizer->Encode("", {.add_special = false}), ElementsAre());
  EXPECT_THAT(*tokenizer->Encode("ab<s>cd", {.add_special = false}),
              ElementsAre(256, '<', 's', '>', 258));
  EXPECT_THAT(*tokenizer->Encode("ab<s>cd", {.add_special = false, .parse_special = true}),
              ElementsAre(256, 300, 258));
  EXPECT_THAT(*tokenizer->Encode("<tool> ab", {.add_special = false}), ElementsAre(301, ' ', 256));
}

TEST(TokenizerTest, NormalizesBetweenTheTwoSearches) {
  TokenizerSpec spec = TinySpec();
  EXPECT_THAT(*Create(spec)->Encode("\u00E9e\u0301", {.add_special = false}),
              ElementsAre(0xC3, 0xA9, 302));
  spec.nfc = true;
  EXPECT_THAT(*Create(spec)->Encode("\u00E9e\u0301", {.add_special = false}),
              ElementsAre(302, 302));
  EXPECT_THAT(*Create(spec)->Encode("a\u0301", {.add_special = false}), ElementsAre(0xC3, 0xA1));
}

TEST(TokenizerTest, TellsWhatTokensAre) {
  const auto tokenizer = Create(TinySpec());
  EXPECT_EQ(tokenizer->vocab_size(), 303);
  EXPECT_EQ(tokenizer->bos_id(), 300);
  EXPECT_FALSE(tokenizer->eos_id().has_value());
  EXPECT_EQ(tokenizer->TokenBytes(257), "abab");
  EXPECT_EQ(tokenizer->TokenBytes(300), "<s>");
  EXPECT_EQ(tokenizer->TokenBytes(299), "");
  EXPECT_EQ(tokenizer->TokenBytes(-1), "");
  EXPECT_EQ(tokenizer->TokenBytes(303), "");
  EXPECT_EQ(tokenizer->token_bytes_max(), 6u);
  EXPECT_TRUE(tokenizer->IsSpecial(300));
  EXPECT_FALSE(tokenizer->IsSpecial(301));
  EXPECT_EQ(tokenizer->special_ids().size(), 1u);
  EXPECT_EQ(tokenizer->TokenId("<tool>"), 301);
  EXPECT_EQ(tokenizer->SpecialId("<s>"), 300);
  EXPECT_EQ(tokenizer->SpecialId("<tool>"), std::nullopt);
  EXPECT_EQ(tokenizer->TokenId("nothing"), std::nullopt);
}

TEST(TokenizerTest, BoundsTheBytesOfATextByItsTokens) {
  TokenizerSpec spec = TinySpec();
  EXPECT_EQ(Create(spec)->TextBytesMax(0), 0u);
  EXPECT_EQ(Create(spec)->TextBytesMax(100), 600u);
  EXPECT_EQ(Create(spec)->TextBytesMax(SIZE_MAX / 2), SIZE_MAX);
  spec.nfc = true;
  EXPECT_EQ(Create(spec)->TextBytesMax(100), 2400u);
  spec.added_tokens[0].lstrip = true;
  EXPECT_EQ(Create(spec)->TextBytesMax(100), SIZE_MAX);
  spec = TinySpec();
  spec.splits[0].keep_matches = false;
  EXPECT_EQ(Create(spec)->TextBytesMax(100), SIZE_MAX);
}

TEST(TokenizerTest, ATextMayHaveNoTokens) {
  TokenizerSpec spec = TinySpec();
  std::erase_if(spec.model.vocabulary,
                [](const VocabularyEntry& entry) { return entry.id == 'q'; });
  const auto tokenizer = Create(spec);
  EXPECT_THAT(*tokenizer->Encode("qqq", {.add_special = false}), ElementsAre());
  // Pieces are what they are before bytes are dropped; the third is remembered from the first.
  EXPECT_THAT(*tokenizer->Encode("q q q aqb", {.add_special = false}),
              ElementsAre(' ', ' ', ' ', 256));
  EXPECT_EQ(tokenizer->TextBytesMax(100), SIZE_MAX);
}

TEST(TokenizerTest, DecodesBytesToText) {
  const auto tokenizer = Create(TinySpec());
  const int32_t ids[] = {300, 257, 0xC3, 0xA9, 0xFF, 299, 5000, -7, 302, 0xC3};
  const std::string f(kReplacementCharacter);
  EXPECT_EQ(tokenizer->Decode(ids, false), "<s>abab\u00E9" + f + "e\u0301" + f);
  EXPECT_EQ(tokenizer->Decode(ids, true), "abab\u00E9" + f + "e\u0301" + f);
  EXPECT_EQ(tokenizer->Decode({}, true), "");
}

TEST(TokenizerTest, TextThatIsNoUtf8IsRefusedWithTheOffset) {
  const auto tokenizer = Create(TinySpec());
  const auto ids = tokenizer->Encode("abc\xC3(");
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(ids.status()), HasSubstr("offset 3"));
}

TEST(TokenizerTest, RefusesAddedTokensThatContradict) {
  TokenizerSpec spec = TinySpec();
  spec.added_tokens[1].id = 300;
  EXPECT_THAT(CreateError(spec), HasSubstr("the id occurs twice"));
  spec = TinySpec();
  spec.added_tokens[1].content = "<s>";
  EXPECT_THAT(CreateError(spec), HasSubstr("the token \"<s>\" occurs twice"));
  spec = TinySpec();
  spec.added_tokens[1].id = 256;
  EXPECT_THAT(CreateError(spec), HasSubstr("another token with this id"));
  spec = TinySpec();
  spec.added_tokens[1].content = "abab";
  EXPECT_THAT(CreateError(spec), HasSubstr("the vocabulary has it with the id 257"));
  spec = TinySpec();
  spec.added_tokens[1].id = -5;
  EXPECT_THAT(CreateError(spec), HasSubstr("id -5"));
  spec.added_tokens[1].id = INT32_MAX;
  EXPECT_THAT(CreateError(spec), HasSubstr("ids are from 0"));
  spec = TinySpec();
  spec.prefix = {299};
  EXPECT_THAT(CreateError(spec), HasSubstr("post_processor: the id 299 is no token"));
  spec = TinySpec();
  spec.nfc = true;
  spec.added_tokens.push_back({.id = 303, .content = "\u00E9", .normalized = true});
  EXPECT_THAT(CreateError(spec), HasSubstr("occurs twice"));
}

TEST(TokenizerTest, LoadNamesTheFile) {
  const TemporaryFolder folder;
  EXPECT_EQ(Tokenizer::Load(folder.path()).status().code(), absl::StatusCode::kNotFound);
  folder.Write("tokenizer.json",
               R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
      "decoder": {"type": "ByteLevel"}, "model": {"vocab": {}, "merges": []}})");
  const absl::Status status = Tokenizer::Load(folder.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("tokenizer.json: vocabulary: none of the 256 bytes"));
}

TEST(TokenizerTest, TheTemplateAddsBos) {
  const auto tokenizer = Tokenizer::Load(GoldenFolder() + "/llama");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ASSERT_TRUE((*tokenizer)->bos_id().has_value());
  const auto with = (*tokenizer)->Encode("Hello");
  const auto without = (*tokenizer)->Encode("Hello", {.add_special = false});
  ASSERT_EQ(with->size(), without->size() + 1);
  EXPECT_EQ(with->front(), *(*tokenizer)->bos_id());
  EXPECT_EQ((*tokenizer)->eos_id(), (*tokenizer)->SpecialId("<|eot_id|>"));
}

class GoldenTokenizerTest : public testing::TestWithParam<const char*> {
 protected:
  const std::unique_ptr<Tokenizer> tokenizer_ = GoldenTokenizer(GetParam(), {});
};

TEST_P(GoldenTokenizerTest, TextIsReadBack) {
  const uint32_t seed = 20260722;
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const char32_t bases[] = {0, 0x20, 0x60, 0x400, 0x3040, 0x4E00, 0x1F600, 0x10FF00};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (size_t length = random() % 40; length > 0; --length) {
      AppendUtf8(bases[random() % std::size(bases)] + random() % 96, text);
    }
    const auto ids = tokenizer_->Encode(text, {.add_special = false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    const std::string expected = GetParam() == std::string("qwen") ? *NormalizeNfc(text) : text;
    ASSERT_EQ(tokenizer_->Decode(*ids, false), expected);
    ASSERT_EQ(tokenizer_->Decode(*ids, true), expected) << "a special token came from text";
  }
}

TEST_P(GoldenTokenizerTest, RandomBytesAreTextOrRefused) {
  const uint32_t seed = 4711;
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const std::string parts[] = {"<|",     "|>",      "eot_id",       "im_end", " ",
                               "\n",     "e",       "\xCC\x81",     "'s",     "<|eot_id|>",
                               "<mask>", "<think>", "\xE6\x97\xA5", "12"};
  size_t num_refused = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string bytes;
    for (size_t length = random() % 20; length > 0; --length) {
      if (random() % 16 == 0) {
        bytes.push_back(static_cast<char>(random()));
      } else {
        bytes += parts[random() % std::size(parts)];
      }
    }
    const EncodeOptions options = {.add_special = random() % 2 == 0,
                                   .parse_special = random() % 2 == 0};
    const auto ids = tokenizer_->Encode(bytes, options);
    ASSERT_EQ(ids.ok(), ValidateUtf8(bytes).ok());
    num_refused += !ids.ok();
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) {
      ASSERT_FALSE(tokenizer_->TokenBytes(id).empty());
      ASSERT_TRUE(options.add_special || options.parse_special || !tokenizer_->IsSpecial(id));
    }
  }
  EXPECT_GT(num_refused, 100u);
}

TEST_P(GoldenTokenizerTest, LongTextsTakeSeconds) {
  std::string words;
  while (words.size() < 4'000'000) words += "The store keeps 123 pages; they'd wait.\n";
  for (const std::string& text :
       {words, std::string(1'000'000, 'a'), std::string(1'000'000, ' ') + "x",
        std::string(1'000'000, '\n'), std::string(1'000'000, '<')}) {
    const auto begin = std::chrono::steady_clock::now();
    const auto ids = tokenizer_->Encode(text, {.add_special = false});
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_TRUE(tokenizer_->Decode(*ids, false) == text);
  }
}

TEST(FallbackTokenizerTest, LongTextsTakeSeconds) {
  std::string words;
  while (words.size() < 4'000'000) words += "The store keeps 123 pages; they'd wait.\n";
  for (const char* const name : {"fallback/lines", "fallback/across", "fallback/prepend"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = GoldenTokenizer(name, {});
    // Without white space a text is one piece.
    for (const std::string& text :
         {words, std::string(1'000'000, 'a'), std::string(1'000'000, ' ') + "x",
          std::string(1'000'000, '\n'), std::string(1'000'000, '<')}) {
      const auto begin = std::chrono::steady_clock::now();
      const auto ids = tokenizer->Encode(text, {.add_special = false});
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_TRUE(tokenizer->Decode(*ids, false) == text);
    }
  }
}

TEST(FallbackTokenizerTest, ATextHasAtMostTheBytesThatItsTokensMayHave) {
  const auto tokenizer = GoldenTokenizer("fallback/lines", {});
  // Eight marks are one token and decode to eight bytes, but have 24.
  const std::string text = absl::StrReplaceAll(std::string(800, 'x'), {{"x", "\u2581"}});
  const auto ids = tokenizer->Encode(text, {.add_special = false});
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_LE(text.size(), tokenizer->TextBytesMax(ids->size()));
}

TEST(FallbackTokenizerTest, DecodesWhatFollowsWithItsSpace) {
  const auto tokenizer = GoldenTokenizer("fallback/first", {});
  const auto ids = tokenizer->Encode("the the\xE2\x82\xAC", {.add_special = false});
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(tokenizer->Decode(*ids, false), "the the\xE2\x82\xAC");
  // As an answer the same tokens go on with a space, and bytes wait for their character.
  IncrementalDetokenizer detokenizer(*tokenizer, true);
  std::vector<std::string> texts;
  for (const int32_t id : *ids) texts.push_back(detokenizer.Append(id));
  EXPECT_THAT(texts, testing::ElementsAre(" the", " the", "", "", "\xE2\x82\xAC"));
}

INSTANTIATE_TEST_SUITE_P(, GoldenTokenizerTest, testing::Values("llama", "qwen"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace retroinfer
