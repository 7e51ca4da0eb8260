#include "text/tokenizer/space_marks_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_replace.h"
#include "tests/text/tokenizer/tokenizer_fixtures.h"

namespace retroinfer {
namespace {

using testing::HasSubstr;

// As Llama 2; tests replace parts of it.
constexpr const char* kFile = R"({
  "added_tokens": [],
  "normalizer": {"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
  "pre_tokenizer": null,
  "post_processor": null,
  "decoder": {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
    {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
  "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
    "vocab": {"a": 0}, "merges": []}
})";

using Replacements = std::vector<std::pair<std::string, std::string>>;

absl::StatusOr<TokenizerSpec> ReadAfter(const Replacements& replacements) {
  const std::string text = absl::StrReplaceAll(kFile, replacements);
  EXPECT_EQ(text == kFile, replacements.empty());
  const auto file = common::JsonReader::ParseObject(text, "tokenizer.json", kTokenizerJson);
  if (!file.ok()) return file.status();
  return ReadTokenizerJson(*file);
}

std::string ErrorAfter(const Replacements& replacements) {
  const auto spec = ReadAfter(replacements);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << replacements[0].second;
  return Message(spec.status());
}

const char kPreTokenizer[] = "\"pre_tokenizer\": null";

std::string Metaspace(std::string_view rest) {
  return absl::StrCat(R"("pre_tokenizer": {"type": "Metaspace", "replacement": "▁")",
                      std::string(rest), "}");
}

TEST(SpaceMarksJsonTest, ReadsNormalizersAndDecoder) {
  const auto spec = ReadAfter({});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->model.byte_fallback);
  EXPECT_TRUE(spec->marks.normalizes_front && spec->marks.normalizes_spaces);
  EXPECT_TRUE(spec->marks.drops_front);
  EXPECT_FALSE(spec->marks.replaces_spaces);
  EXPECT_TRUE(spec->splits.empty());
  const auto kept =
      ReadAfter({{R"(, {"type": "Strip", "content": " ", "start": 1, "stop": 0})", ""},
                 {R"({"type": "Prepend", "prepend": "▁"},)", ""}});
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_FALSE(kept->marks.drops_front || kept->marks.normalizes_front);
}

TEST(SpaceMarksJsonTest, ReadsMetaspace) {
  using Front = SpaceMarkSpec::Front;
  const auto read = [](std::string_view rest) {
    return ReadAfter({{kPreTokenizer, Metaspace(rest)}});
  };
  const auto bare = read("");  // what transformers takes for keys that are not there
  ASSERT_TRUE(bare.ok()) << bare.status();
  EXPECT_TRUE(bare->marks.replaces_spaces);
  EXPECT_EQ(bare->marks.front, Front::kEach);
  EXPECT_EQ(bare->splits.size(), 1u);
  const auto first = read(R"(, "prepend_scheme": "first", "split": false)");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->marks.front, Front::kFirst);
  EXPECT_TRUE(first->splits.empty());
  const auto never = read(R"(, "prepend_scheme": "never", "add_prefix_space": false)");
  ASSERT_TRUE(never.ok()) << never.status();
  EXPECT_EQ(never->marks.front, Front::kNone);
}

TEST(SpaceMarksJsonTest, ASplitOfSpacesThatAreGoneDoesNothing) {
  const auto spec = ReadAfter({{kPreTokenizer, R"("pre_tokenizer": {"type": "Split",
      "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false})"}});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->splits.empty());
  EXPECT_THAT(ErrorAfter({{kPreTokenizer, R"("pre_tokenizer": {"type": "Split",
      "pattern": {"String": "x"}, "behavior": "MergedWithPrevious", "invert": false})"}}),
              HasSubstr("only Isolated and Removed"));
}

TEST(SpaceMarksJsonTest, RefusesWhatItDoesNotUnderstand) {
  EXPECT_THAT(ErrorAfter({{R"("prepend": "▁")", R"("prepend": "_")"}}), HasSubstr("only U+2581"));
  EXPECT_THAT(ErrorAfter({{R"({"String": " "})", R"({"String": "x"})"}}), HasSubstr("supported"));
  EXPECT_THAT(ErrorAfter({{R"({"String": " "})", R"({"Regex": " "})"}}), HasSubstr("Regex"));
  EXPECT_THAT(ErrorAfter({{R"("start": 1)", R"("start": 2)"}}), HasSubstr("one space"));
  EXPECT_THAT(ErrorAfter({{R"("stop": 0)", R"("stop": 1)"}}), HasSubstr("one space"));
  EXPECT_THAT(ErrorAfter({{R"({"type": "ByteFallback"},)", ""}}), HasSubstr("Fuse"));
  EXPECT_THAT(ErrorAfter({{R"({"type": "Fuse"}, {"type": "Strip")", R"({"type": "Strip")"}}),
              HasSubstr("Strip"));
  EXPECT_THAT(ErrorAfter({{R"("content": " "}, {"type": "ByteFallback"})",
                           R"("content": "_"}, {"type": "ByteFallback"})"}}),
              HasSubstr("only a space"));
  EXPECT_THAT(ErrorAfter({{kPreTokenizer, Metaspace(R"(, "prepend_scheme": "last")")}}),
              HasSubstr("always, first or never"));
  EXPECT_THAT(ErrorAfter({{kPreTokenizer, Metaspace(R"(, "add_prefix_space": false)")}}),
              HasSubstr("contradicts"));
  EXPECT_THAT(ErrorAfter({{kPreTokenizer, R"("pre_tokenizer": {"type": "ByteLevel",
      "add_prefix_space": false})"}}),
              HasSubstr("ByteLevel and byte_fallback"));
  // Marks without byte_fallback.
  EXPECT_THAT(ErrorAfter({{R"("byte_fallback": true)", R"("byte_fallback": false)"}}),
              HasSubstr("byte_fallback"));
}

}  // namespace
}  // namespace retroinfer
