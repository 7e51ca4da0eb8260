// 5,000 strings have the ids that Hugging Face tokenizers gives them: see
// tools/make_tokenizer_golden.py, which says how the file is written. Others have bytes that a
// vocabulary lacks: see tools/make_byte_gaps_golden.py.
#include <gtest/gtest.h>
#include <simdjson.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "tests/text/tokenizer/tokenizer_fixtures.h"
#include "text/tokenizer/tokenizer.h"

namespace retroinfer {
namespace {

struct Example {
  bool parse_special = false;
  std::string text;
  std::vector<int32_t> ids;
};

// `column`: of the ids. The text is before the first column of ids, and flags before that, if any.
std::vector<Example> ReadExamples(const std::string& path, size_t text_column, size_t column) {
  std::vector<Example> examples;
  simdjson::dom::parser parser;
  simdjson::dom::document_stream lines;
  EXPECT_FALSE(parser.load_many(path).get(lines)) << path;
  for (const auto line : lines) {
    examples.push_back({.parse_special = text_column > 0 && line.at(0).get_string().value() == "p",
                        .text = std::string(line.at(text_column).get_string().value()),
                        .ids = DecodeGoldenIds(line.at(column).get_string().value())});
  }
  return examples;
}

// `column`: 2 for llama, 3 for qwen, 4 for mistral.
std::vector<Example> ReadExamples(size_t column) {
  return ReadExamples(GoldenFolder() + "/encodings.jsonl", 1, column);
}

// Expects the ids of the examples and returns how many there are.
size_t ExpectIds(const Tokenizer& tokenizer, const std::vector<Example>& examples) {
  size_t num_ids = 0;
  size_t num_different = 0;
  for (const Example& example : examples) {
    num_ids += example.ids.size();
    const auto ids = tokenizer.Encode(
        example.text, {.add_special = false, .parse_special = example.parse_special});
    EXPECT_TRUE(ids.ok()) << ids.status();
    if (!ids.ok() || *ids == example.ids || ++num_different > 20) continue;
    ADD_FAILURE() << "\"" << absl::CHexEscape(example.text) << "\": " << absl::StrJoin(*ids, " ")
                  << ", expected " << absl::StrJoin(example.ids, " ");
  }
  EXPECT_EQ(num_different, 0u);
  return num_ids;
}

struct GoldenCase {
  const char* name;
  size_t column;
  bool nfc;
};

class GoldenTest : public testing::TestWithParam<GoldenCase> {};

TEST_P(GoldenTest, IdsAreThoseOfHuggingFace) {
  const auto tokenizer = Tokenizer::Load(GoldenFolder() + "/" + GetParam().name);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<Example> examples = ReadExamples(GetParam().column);
  ASSERT_EQ(examples.size(), 5000u);
  EXPECT_GT(ExpectIds(**tokenizer, examples), 50000u);
}

TEST_P(GoldenTest, IdsDecodeToTheText) {
  const auto tokenizer = Tokenizer::Load(GoldenFolder() + "/" + GetParam().name);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  size_t num_different = 0;
  for (const Example& example : ReadExamples(GetParam().column)) {
    num_different += (*tokenizer)->Decode(example.ids, false) != example.text;
  }
  // Normalisation changes the text of some.
  if (GetParam().nfc) {
    EXPECT_GT(num_different, 0u);
  } else {
    EXPECT_EQ(num_different, 0u);
  }
}

TEST(ByteGapsGoldenTest, IdsAreThoseOfHuggingFace) {
  const std::string folder = GoldenFolder() + "/byte_gaps";
  const char* const names[] = {"dropped", "unknown", "fused", "merged"};
  for (size_t i = 0; i < std::size(names); ++i) {
    SCOPED_TRACE(names[i]);
    const auto tokenizer = Tokenizer::Load(folder + "/" + names[i]);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const std::vector<Example> examples = ReadExamples(folder + "/encodings.jsonl", 0, i + 1);
    EXPECT_GT(examples.size(), 800u);
    EXPECT_GT(ExpectIds(**tokenizer, examples), 5000u);
    // A limit in tokens is one in bytes where each byte leaves something.
    EXPECT_EQ((*tokenizer)->TextBytesMax(100) == SIZE_MAX, i == 0 || i == 2);
  }
}

INSTANTIATE_TEST_SUITE_P(, GoldenTest,
                         testing::Values(GoldenCase{"llama", 2, false}, GoldenCase{"qwen", 3, true},
                                         GoldenCase{"mistral", 4, false}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace retroinfer
