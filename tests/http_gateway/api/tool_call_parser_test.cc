#include "http_gateway/api/tool_call_parser.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace retroinfer::gateway {
namespace {

// Text as it is, calls as [name arguments].
class Shown {
 public:
  Shown(ToolForm form, std::set<std::string> names) : parser_(form, std::move(names)) {}
  void Append(std::string_view text) {
    std::vector<AnswerPiece> pieces;
    parser_.Append(text, &pieces);
    Show(pieces);
  }
  void Finish() {
    std::vector<AnswerPiece> pieces;
    parser_.Finish(&pieces);
    Show(pieces);
  }
  const std::string& text() const { return text_; }

 private:
  void Show(const std::vector<AnswerPiece>& pieces) {
    for (const AnswerPiece& piece : pieces) {
      if (piece.kind == AnswerPiece::Kind::kCallBegin) text_ += "[";
      text_ += piece.text;
      if (piece.kind == AnswerPiece::Kind::kCallBegin) text_ += " ";
      if (piece.kind == AnswerPiece::Kind::kCallEnd) text_ += "]";
    }
  }

  ToolCallParser parser_;
  std::string text_;
};

// Fed in pieces of every size, the result must be the same.
void Expect(ToolForm form, const std::string& text, const std::string& expected) {
  for (size_t step = 1; step <= text.size() + 1; ++step) {
    Shown shown(form, {"add", "look_up"});
    for (size_t i = 0; i < text.size(); i += step) shown.Append(text.substr(i, step));
    shown.Finish();
    EXPECT_EQ(shown.text(), expected) << text << " by " << step;
  }
}

TEST(ToolCallParser, FindsCallsOfHermesAndQwen) {
  Expect(ToolForm::kHermes,
         "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": 2, \"a\": 1}}\n</tool_call>",
         "[add {\"b\":2,\"a\":1}]");
  Expect(
      ToolForm::kHermes,
      "I "
      "look.\n<tool_call>{\"name\":\"look_up\",\"arguments\":{\"w\":\"</tool_cal\"}}</tool_call>\n"
      "<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>\n",
      "I look.[look_up {\"w\":\"</tool_cal\"}][add {}]");
  Expect(ToolForm::kHermes,
         "<tool_call>{\"name\": \"add\", \"arguments\": \"{\\\"a\\\":1}\"}</tool_call>",
         "[add {\"a\":1}]");
  Expect(ToolForm::kHermes, "<tool_call>{\"name\": \"add\"}</tool_call>", "[add {}]");
}

TEST(ToolCallParser, ACallWithoutItsClosingTagIsOne) {
  Expect(ToolForm::kHermes, "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}",
         "[add {\"a\":1}]");
}

TEST(ToolCallParser, WhatIsNoCallOfHermesStaysText) {
  for (const char* text :
       {"just text <b> </tool_call>", "<tool_call>not JSON</tool_call> and on",
        "<tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"add\"",
        "<tool_call>{\"name\": \"add\", \"arguments\": 3}</tool_call>", "a <tool_cal", " \n",
        "<tool_call>{\"name\": \"add\", \"name\": \"add\"}</tool_call>"}) {
    Expect(ToolForm::kHermes, text, text);
  }
}

TEST(ToolCallParser, FindsCallsOfLlama) {
  Expect(ToolForm::kLlama, "{\"name\": \"add\", \"parameters\": {\"a\": \"}\\\"{\"}}",
         "[add {\"a\":\"}\\\"{\"}]");
  Expect(ToolForm::kLlama,
         "\n<|python_tag|>{\"name\": \"add\", \"parameters\": {}}; {\"name\": \"look_up\", "
         "\"parameters\": {\"w\": 1}}\n",
         "[add {}][look_up {\"w\":1}]");
}

TEST(ToolCallParser, WhatIsNoCallOfLlamaStaysText) {
  for (const char* text :
       {"plain", "{\"name\": \"rm\", \"parameters\": {}}", "{\"json\": [1, 2]}", "{ never closed",
        "text {\"name\": \"add\", \"parameters\": {}}", "<|python", "  ", "{]}"}) {
    Expect(ToolForm::kLlama, text, text);
  }
  Expect(ToolForm::kLlama, "{\"name\": \"add\", \"parameters\": {}} and text", "[add {}] and text");
}

TEST(ToolCallParser, ADeepArgumentIsNoCall) {
  const std::string deep =
      "{\"name\": \"add\", \"parameters\": {\"a\": " + std::string(100'000, '[') +
      std::string(100'000, ']') + "}}";
  Shown shown(ToolForm::kLlama, {"add"});
  shown.Append(deep);
  shown.Finish();
  EXPECT_EQ(shown.text(), deep);
}

TEST(ToolCallParser, WithoutFunctionsNothingIsHeldBack) {
  Shown shown(ToolForm::kHermes, {});
  shown.Append("<tool_call>");
  EXPECT_EQ(shown.text(), "<tool_call>");
  Shown unknown(ToolForm::kNone, {"add"});
  unknown.Append("{\"name\": \"add\"}");
  EXPECT_EQ(unknown.text(), "{\"name\": \"add\"}");
}

TEST(ToolCallParser, SendsTextAsItComes) {
  Shown shown(ToolForm::kHermes, {"add"});
  shown.Append("Hello");
  EXPECT_EQ(shown.text(), "Hello");
  shown.Append(" <");
  EXPECT_EQ(shown.text(), "Hello");
  shown.Append("b>");
  EXPECT_EQ(shown.text(), "Hello <b>");
}

}  // namespace
}  // namespace retroinfer::gateway
