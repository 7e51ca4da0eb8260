// 5,000 strings have the ids that Hugging Face tokenizers gives them: see
// tools/make_tokenizer_golden.py, which says how the file is written.
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

// `column`: 2 for llama, 3 for qwen.
std::vector<Example> ReadExamples(size_t column) {
  std::vector<Example> examples;
  simdjson::dom::parser parser;
  simdjson::dom::document_stream lines;
  const std::string path = GoldenFolder() + "/encodings.jsonl";
  EXPECT_FALSE(parser.load_many(path).get(lines)) << path;
  for (const auto line : lines) {
    examples.push_back({.parse_special = line.at(0).get_string().value() == "p",
                        .text = std::string(line.at(1).get_string().value()),
                        .ids = DecodeGoldenIds(line.at(column).get_string().value())});
  }
  return examples;
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
  size_t num_ids = 0;
  size_t num_different = 0;
  for (const Example& example : examples) {
    num_ids += example.ids.size();
    const auto ids =
        (*tokenizer)
            ->Encode(example.text, {.add_special = false, .parse_special = example.parse_special});
    ASSERT_TRUE(ids.ok()) << ids.status();
    if (*ids == example.ids || ++num_different > 20) continue;
    ADD_FAILURE() << "\"" << absl::CHexEscape(example.text) << "\": " << absl::StrJoin(*ids, " ")
                  << ", expected " << absl::StrJoin(example.ids, " ");
  }
  EXPECT_EQ(num_different, 0u);
  EXPECT_GT(num_ids, 50000u);
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

INSTANTIATE_TEST_SUITE_P(, GoldenTest,
                         testing::Values(GoldenCase{"llama", 2, false},
                                         GoldenCase{"qwen", 3, true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace retroinfer
