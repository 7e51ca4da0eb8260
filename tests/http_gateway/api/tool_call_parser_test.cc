#include "http_gateway/api/tool_call_parser.h"

#include <gtest/gtest.h>

#include <string>

namespace retroinfer::gateway {
namespace {

// Text as it is, calls as [name arguments].
std::string Show(const std::vector<AnswerPiece>& pieces) {
  std::string shown;
  for (const AnswerPiece& piece : pieces) {
    shown += piece.call.has_value() ? "[" + piece.call->name + " " + piece.call->arguments + "]"
                                    : piece.text;
  }
  return shown;
}

// Fed in pieces of every size, the result must be the same.
void Expect(ToolForm form, const std::string& text, const std::string& expected) {
  for (size_t step = 1; step <= text.size() + 1; ++step) {
    ToolCallParser parser(form, {"add", "look_up"});
    std::string shown;
    for (size_t i = 0; i < text.size(); i += step)
      shown += Show(parser.Append(text.substr(i, step)));
    shown += Show(parser.Finish());
    EXPECT_EQ(shown, expected) << text << " by " << step;
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
  ToolCallParser parser(ToolForm::kLlama, {"add"});
  std::string shown = Show(parser.Append(deep));
  shown += Show(parser.Finish());
  EXPECT_EQ(shown, deep);
}

TEST(ToolCallParser, WithoutFunctionsNothingIsHeldBack) {
  ToolCallParser parser(ToolForm::kHermes, {});
  EXPECT_EQ(Show(parser.Append("<tool_call>")), "<tool_call>");
  ToolCallParser unknown(ToolForm::kNone, {"add"});
  EXPECT_EQ(Show(unknown.Append("{\"name\": \"add\"}")), "{\"name\": \"add\"}");
}

TEST(ToolCallParser, SendsTextAsItComes) {
  ToolCallParser parser(ToolForm::kHermes, {"add"});
  EXPECT_EQ(Show(parser.Append("Hello")), "Hello");
  EXPECT_EQ(Show(parser.Append(" <")), "");
  EXPECT_EQ(Show(parser.Append("b>")), " <b>");
}

TEST(ToolCallParser, AnOpeningAndWhatFollowsAreACall) {
  for (const ToolForm form : {ToolForm::kHermes, ToolForm::kLlama}) {
    ToolCallParser named(form, {"add"});
    std::string shown = Show(named.Append(ToolCallParser::Opening(form, "add")));
    shown += Show(named.Append("\"a\": 1}}"));
    shown += Show(named.Finish());
    EXPECT_EQ(shown, "[add {\"a\":1}]");
    ToolCallParser any(form, {"add"});
    shown = Show(any.Append(ToolCallParser::Opening(form, "")));
    shown += Show(any.Append("add\", \"parameters\": {\"a\": 2}}"));
    shown += Show(any.Finish());
    EXPECT_EQ(shown, "[add {\"a\":2}]");
  }
}

}  // namespace
}  // namespace retroinfer::gateway
