#include "text/tokenizer/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_replace.h"
#include "tests/text/tokenizer/tokenizer_fixtures.h"

namespace retroinfer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A file with everything that is understood. Tests replace parts of it.
constexpr const char* kFile = R"({
  "version": "1.0", "truncation": {"max_length": 5}, "padding": null,
  "added_tokens": [
    {"id": 7, "content": "<s>", "single_word": false, "lstrip": true, "rstrip": false,
     "normalized": false, "special": true},
    {"id": 8, "content": "word", "single_word": true}],
  "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "a+"}, "behavior": "Isolated", "invert": false},
    {"type": "Split", "pattern": {"String": "."}, "behavior": "Removed", "invert": false},
    {"type": "Split", "pattern": {"Regex": "b"}, "behavior": "Removed", "invert": true},
    {"type": "Digits", "individual_digits": true},
    {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
  "post_processor": {"type": "Sequence", "processors": [
    {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
    {"type": "TemplateProcessing",
     "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "</s>", "type_id": 0}}],
     "pair": [], "special_tokens": {
       "<s>": {"id": "<s>", "ids": [7], "tokens": ["<s>"]},
       "</s>": {"id": "</s>", "ids": [8, 7], "tokens": ["</s>"]}}}]},
  "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
    "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
    "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b", ["b", "a"]]}
})";

absl::StatusOr<TokenizerSpec> Read(std::string_view text) {
  const auto file = common::JsonReader::ParseObject(text, "tokenizer.json", kTokenizerJson);
  if (!file.ok()) return file.status();
  return ReadTokenizerJson(*file);
}

// The message with which kFile is refused after `from` has become `to`.
std::string ErrorAfter(const std::string& from, const std::string& to) {
  const std::string text = absl::StrReplaceAll(kFile, {{from, to}});
  EXPECT_NE(text, kFile) << from;
  const auto spec = Read(text);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << to;
  return Message(spec.status());
}

TEST(TokenizerJsonTest, ReadsAllParts) {
  const auto spec = Read(kFile);
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_EQ(spec->added_tokens.size(), 2u);
  EXPECT_EQ(spec->added_tokens[0].content, "<s>");
  EXPECT_EQ(spec->added_tokens[0].id, 7);
  EXPECT_TRUE(spec->added_tokens[0].special);
  EXPECT_TRUE(spec->added_tokens[0].lstrip);
  EXPECT_FALSE(spec->added_tokens[0].normalized);
  EXPECT_TRUE(spec->added_tokens[1].single_word);
  EXPECT_TRUE(spec->added_tokens[1].normalized);
  EXPECT_TRUE(spec->nfc);
  ASSERT_EQ(spec->splits.size(), 4u);
  EXPECT_TRUE(spec->splits[0].keep_matches && spec->splits[0].keep_gaps);
  EXPECT_TRUE(!spec->splits[1].keep_matches && spec->splits[1].keep_gaps);
  EXPECT_TRUE(spec->splits[2].keep_matches && !spec->splits[2].keep_gaps);
  EXPECT_TRUE(spec->splits[3].keep_matches && spec->splits[3].keep_gaps);
  EXPECT_THAT(spec->prefix, ElementsAre(7));
  EXPECT_THAT(spec->suffix, ElementsAre(8, 7));
  EXPECT_TRUE(spec->model.ignore_merges);
  ASSERT_EQ(spec->model.vocabulary.size(), 3u);
  EXPECT_EQ(spec->model.vocabulary[2].token, "ab");
  ASSERT_EQ(spec->model.merges.size(), 2u);
  EXPECT_EQ(spec->model.merges[0].right, "b");
  EXPECT_EQ(spec->model.merges[1].left, "b");
}

TEST(TokenizerJsonTest, PartsThatMayBeAbsent) {
  const auto spec = Read(R"({"added_tokens": null, "normalizer": null, "post_processor": null,
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
      "decoder": {"type": "ByteLevel"}, "model": {"vocab": {}, "merges": []}})");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(spec->nfc);
  EXPECT_EQ(spec->splits.size(), 1u);  // the pattern of ByteLevel itself
  EXPECT_TRUE(spec->prefix.empty());
}

TEST(TokenizerJsonTest, TheUnknownTokenIsRead) {
  EXPECT_FALSE(Read(kFile)->model.unknown_token.has_value());
  const auto fused =
      Read(absl::StrReplaceAll(kFile, {{"\"unk_token\": null", "\"unk_token\": \"<s>\""},
                                       {"\"fuse_unk\": false", "\"fuse_unk\": true"}}));
  ASSERT_TRUE(fused.ok()) << fused.status();
  EXPECT_EQ(fused->model.unknown_token, "<s>");
  EXPECT_TRUE(fused->model.fuse_unknown);
  EXPECT_THAT(ErrorAfter("\"unk_token\": null", "\"unk_token\": 3"), HasSubstr("model.unk_token"));
}

TEST(TokenizerJsonTest, UnknownFeaturesAreRefusedByName) {
  EXPECT_THAT(ErrorAfter("\"NFC\"", "\"NFKC\""), HasSubstr("type NFKC is not supported"));
  EXPECT_THAT(ErrorAfter("\"Digits\", \"individual_digits\": true",
                         "\"Metaspace\", \"replacement\": \"\u2581\""),
              HasSubstr("a pre-tokenizer before Metaspace"));
  EXPECT_THAT(ErrorAfter("\"Isolated\"", "\"MergedWithNext\""), HasSubstr("behavior: only"));
  EXPECT_THAT(ErrorAfter("\"BPE\"", "\"Unigram\""), HasSubstr("model: type Unigram"));
  EXPECT_THAT(ErrorAfter("\"TemplateProcessing\"", "\"BertProcessing\""),
              HasSubstr("BertProcessing"));
  EXPECT_THAT(
      ErrorAfter("\"decoder\": {\"type\": \"ByteLevel\"", "\"decoder\": {\"type\": \"Fuse\""),
      HasSubstr("decoder: type Fuse"));
  EXPECT_THAT(ErrorAfter("\"byte_fallback\": false", "\"byte_fallback\": true"),
              HasSubstr("ByteLevel and byte_fallback together"));
  EXPECT_THAT(ErrorAfter("\"dropout\": null", "\"dropout\": 0.1"), HasSubstr("model.dropout"));
  EXPECT_THAT(ErrorAfter("\"end_of_word_suffix\": null", "\"end_of_word_suffix\": \"</w>\""),
              HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(ErrorAfter("\"add_prefix_space\": false", "\"add_prefix_space\": true"),
              HasSubstr("add_prefix_space is not supported"));
  EXPECT_THAT(ErrorAfter("\"fuse_unk\"", "\"fuse_all\""),
              HasSubstr("\"fuse_all\" is not supported"));
  EXPECT_THAT(ErrorAfter("\"version\"", "\"vers\\u0000ion\""), HasSubstr("is not supported"));
  EXPECT_THAT(ErrorAfter("a+", "a+$"), HasSubstr("pattern.Regex: pattern \"a+$\", offset 2"));
  EXPECT_THAT(
      ErrorAfter("{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
                 "\"use_regex\": false}",
                 "{\"type\": \"Digits\"}"),
      HasSubstr("needs ByteLevel"));
  EXPECT_THAT(ErrorAfter("{\"type\": \"Digits\", \"individual_digits\": true}",
                         "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}"),
              HasSubstr("after ByteLevel"));
}

TEST(TokenizerJsonTest, WrongTypesAreRefusedWithTheirPlace) {
  EXPECT_THAT(ErrorAfter("\"id\": 7,", "\"id\": \"7\","),
              HasSubstr("tokenizer.json: added_tokens.[0].id: is"));
  EXPECT_THAT(ErrorAfter("\"id\": 8,", "\"id\": 8.5,"), HasSubstr("added_tokens.[1].id"));
  EXPECT_THAT(ErrorAfter("\"lstrip\": true", "\"lstrip\": 1"), HasSubstr("lstrip\" is"));
  EXPECT_THAT(ErrorAfter("\"content\": \"<s>\"", "\"content\": \"\""),
              HasSubstr("a token is empty"));
  EXPECT_THAT(ErrorAfter("{\"a\": 0, \"b\": 1, \"ab\": 2}", "[]"),
              HasSubstr("model.vocab: is an array; needs an object"));
  EXPECT_THAT(ErrorAfter("\"b\": 1", "\"b\": -1"), HasSubstr("model.vocab.b: needs to be an id"));
  EXPECT_THAT(ErrorAfter("\"b\": 1", "\"b\": 9999999999"), HasSubstr("model.vocab.b"));
  EXPECT_THAT(ErrorAfter("\"b\": 1", "\"b\": {}"), HasSubstr("model.vocab.b"));
  EXPECT_THAT(ErrorAfter("\"a b\"", "\"ab\""), HasSubstr("model.merges: merge 0"));
  EXPECT_THAT(ErrorAfter("\"a b\"", "\"a b c\""), HasSubstr("merge 0"));
  EXPECT_THAT(ErrorAfter("[\"b\", \"a\"]", "[\"b\"]"), HasSubstr("merge 1"));
  EXPECT_THAT(ErrorAfter("[\"b\", \"a\"]", "[\"b\", 1]"), HasSubstr("merge 1"));
  EXPECT_THAT(ErrorAfter("[\"b\", \"a\"]", "null"), HasSubstr("merge 1"));
  EXPECT_THAT(ErrorAfter("\"ids\": [7]", "\"ids\": [\"x\"]"),
              HasSubstr("ids.[]: is \"x\"; needs an integer"));
  EXPECT_THAT(ErrorAfter("\"A\"", "\"B\""), HasSubstr("the sequence A"));
  EXPECT_THAT(ErrorAfter("\"</s>\": {", "\"x\": {"), HasSubstr("\"</s>\" is missing"));
  EXPECT_THAT(ErrorAfter("\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, ", ""),
              HasSubstr("\"vocab\" is missing"));
  EXPECT_THAT(ErrorAfter("\"vocab\"", "\"merges\""), HasSubstr("\"merges\" twice"));
}

TEST(TokenizerJsonTest, HugeTokensAreRefused) {
  EXPECT_THAT(ErrorAfter("\"b\": 1", "\"" + std::string(10'000'000, 'b') + "\": 1"),
              HasSubstr("a token has 10000000 bytes, at most 4096"));
  EXPECT_THAT(ErrorAfter("<s>", std::string(2000, 's')), HasSubstr("a token has 2000 bytes"));
  EXPECT_THAT(ErrorAfter("a+", std::string(20000, 'a')), HasSubstr("the pattern has 20000 bytes"));
}

// No cut or changed file may do worse than be refused.
TEST(TokenizerJsonTest, DamagedFilesAreNoDanger) {
  const std::string text = kFile;
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_FALSE(Read(text.substr(0, i)).ok()) << i;
    if (i % 7 != 0) continue;
    for (const char c : {'"', '[', '}', '0', 'x'}) {
      std::string damaged = text;
      damaged[i] = c;
      if (const auto spec = Read(damaged); spec.ok()) (void)Tokenizer::Create(*spec, {});
    }
  }
}

}  // namespace
}  // namespace retroinfer
