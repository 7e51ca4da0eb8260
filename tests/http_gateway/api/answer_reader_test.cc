#include "http_gateway/api/answer_reader.h"

#include <gtest/gtest.h>

#include <utility>

namespace retroinfer::gateway {
namespace {

using Kind = AnswerPiece::Kind;

// Pieces of one kind that follow each other are one in the result.
std::vector<AnswerPiece> ReadBy(const AnswerReaderOptions& options, const std::string& text,
                                size_t step) {
  AnswerReader reader(options);
  std::vector<AnswerPiece> all;
  const auto add = [&all](const std::vector<AnswerPiece>& pieces) {
    for (const AnswerPiece& piece : pieces) {
      if (piece.text.empty()) {
        all.push_back(piece);
      } else {
        AppendPiece(piece.kind, piece.text, &all);
      }
    }
  };
  for (size_t i = 0; i < text.size(); i += step) add(reader.Append(text.substr(i, step)));
  add(reader.Finish());
  return all;
}

TEST(AnswerReader, ReadsThoughtsTextAndCallsHoweverTheyAreCut) {
  AnswerReaderOptions options = {.tool_form = ToolForm::kHermes,
                                 .functions = CallableFunctions::Named({"add"})};
  options.splitter.emplace(false);
  const std::string text =
      "<think>hm</think>I add.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\":1}}\n"
      "</tool_call>";
  const std::vector<AnswerPiece> expected = {{Kind::kReasoning, "hm"},
                                             {Kind::kText, "I add."},
                                             {Kind::kCallBegin, "add"},
                                             {Kind::kCallArguments, "{\"a\":1}"},
                                             {Kind::kCallEnd, ""}};
  for (size_t step = 1; step <= text.size(); ++step) {
    EXPECT_EQ(ReadBy(options, text, step), expected) << step;
  }
}

TEST(AnswerReader, WithoutThoughtsAndFunctionsAllIsText) {
  const std::string text = "<think>hm</think><tool_call>";
  EXPECT_EQ(ReadBy({}, text, 1), (std::vector<AnswerPiece>{{Kind::kText, text}}));
}

TEST(AnswerReader, MayEndBehindTheFirstCall) {
  AnswerReaderOptions options = {.tool_form = ToolForm::kHermes,
                                 .functions = CallableFunctions::Named({"add"}),
                                 .one_call = true};
  const std::string text =
      "Two.<tool_call>[{\"name\": \"add\"}, {\"name\": \"add\"}]</tool_call>more";
  const std::vector<AnswerPiece> expected = {{Kind::kText, "Two."},
                                             {Kind::kCallBegin, "add"},
                                             {Kind::kCallArguments, "{}"},
                                             {Kind::kCallEnd, ""}};
  for (size_t step = 1; step <= text.size(); ++step) {
    EXPECT_EQ(ReadBy(options, text, step), expected) << step;
  }
}

TEST(AnswerReader, GivesArgumentsOutAsTheyCome) {
  AnswerReader reader(
      {.tool_form = ToolForm::kHermes, .functions = CallableFunctions::Named({"add"})});
  EXPECT_TRUE(reader.Append("<tool_call>{\"name\": \"add\", \"arguments\": ").empty());
  EXPECT_EQ(reader.Append("{\"a").size(), 2U);
  EXPECT_EQ(reader.Append("b").front(), (AnswerPiece{Kind::kCallArguments, "b"}));
}

TEST(AnswerReader, CountsCalls) {
  AnswerReader reader(
      {.tool_form = ToolForm::kHermes, .functions = CallableFunctions::Named({"add"})});
  EXPECT_EQ(reader.num_calls(), 0);
  reader.Append("<tool_call>{\"name\": \"add\"}</tool_call><tool_call>{\"name\": \"add\"}");
  reader.Finish();
  EXPECT_EQ(reader.num_calls(), 2);
}

}  // namespace
}  // namespace retroinfer::gateway
