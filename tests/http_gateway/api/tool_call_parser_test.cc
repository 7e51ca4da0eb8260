#include "http_gateway/api/tool_call_parser.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace retroinfer::gateway {
namespace {

// Text as it is, calls as [name arguments].
class Shown {
 public:
  Shown(ToolForm form, const std::vector<std::string>& names)
      : parser_(form, CallableFunctions::Named(names)) {}
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
         "[add {\"b\": 2, \"a\": 1}]");
  Expect(ToolForm::kHermes,
         "I look.\n<tool_call>{\"name\":\"look_up\",\"arguments\":{\"w\":\"</tool_call>\"}}"
         "</tool_call>\n<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>\n",
         "I look.[look_up {\"w\":\"</tool_call>\"}][add {}]");
  Expect(ToolForm::kHermes,
         "<tool_call>{\"name\": \"add\", \"arguments\": \"{\\\"a\\\":1}\"}</tool_call>",
         "[add {\"a\":1}]");
}

TEST(ToolCallParser, HandsArgumentsOnAsTheModelWroteThem) {
  Expect(ToolForm::kHermes,
         "<tool_call>{\"arguments\": {\"n\": 12345678901234567890123, \"x\" : 1.50e3}, "
         "\"name\": \"add\"}</tool_call>",
         "[add {\"n\": 12345678901234567890123, \"x\" : 1.50e3}]");
  Expect(ToolForm::kHermes,
         "<tool_call>{\"name\": \"add\", \"arguments\": {\"code\": \"a\n\tb\"}}</tool_call>",
         "[add {\"code\": \"a\\n\\u0009b\"}]");
}

TEST(ToolCallParser, NoArgumentsAreAnEmptyObject) {
  for (const char* members : {"", ", \"arguments\": null", ", \"arguments\": \"\"",
                              ", \"arguments\": {}", ", \"id\": 3"}) {
    Expect(ToolForm::kHermes,
           absl::StrCat("<tool_call>{\"name\": \"add\"", members, "}</tool_call>"), "[add {}]");
  }
}

TEST(ToolCallParser, FindsSeveralCallsInOneTag) {
  const std::string add = R"({"name": "add", "arguments": {"a": 1}})";
  for (const char* between : {", ", "\n", ";"}) {
    Expect(ToolForm::kHermes,
           absl::StrCat("<tool_call>\n[", add, between, add, "]\n</tool_call> and"),
           "[add {\"a\": 1}][add {\"a\": 1}] and");
    Expect(ToolForm::kHermes, absl::StrCat("<tool_call>", add, between, add, "</tool_call>"),
           "[add {\"a\": 1}][add {\"a\": 1}]");
  }
}

TEST(ToolCallParser, ACallMayLackItsEnd) {
  const std::string call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}";
  for (const char* end : {"}", "", "}}", "}\n</tool_call", "\n</tool_call>", "}}</tool_call>"}) {
    Expect(ToolForm::kHermes, call + end, "[add {\"a\": 1}]");
  }
  // Cut within the arguments, as by max_tokens.
  Expect(ToolForm::kHermes, "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"x",
         "[add {\"a\": \"x]");
}

TEST(ToolCallParser, ArgumentsThatBreakAreNotMended) {
  Expect(ToolForm::kHermes,
         "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 'x'}}</tool_call>",
         "[add {\"a\": ]'x'}}");
  const std::string deep =
      "{\"name\": \"add\", \"parameters\": {\"a\": " + std::string(100'000, '[');
  Shown shown(ToolForm::kLlama, {"add"});
  shown.Append(deep);
  shown.Finish();
  EXPECT_EQ(shown.text(),
            "[add {\"a\": " + std::string(63, '[') + "]" + std::string(100'000 - 63, '['));
}

TEST(ToolCallParser, WhatIsNoCallOfHermesStaysText) {
  for (const char* text :
       {"just text <b> </tool_call>", "<tool_call>not JSON</tool_call> and on",
        "x \n<tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call>\n",
        "<tool_call>{\"name\": \"add\"", "<tool_call></tool_call>", "<tool_call>[]</tool_call>",
        "<tool_call>{\"name\": \"add\", \"arguments\": 3}</tool_call>", "a <tool_cal", " \n",
        "<tool_call>{\"name\": \"rm\", \"arguments\": {\"x\": "
        "\"<tool_call>{\\\"name\\\": \\\"add\\\"}\"}}</tool_call>",
        "<tool_call>{\"name\": \"add\", \"name\": \"add\"}</tool_call>"}) {
    Expect(ToolForm::kHermes, text, text);
  }
}

TEST(ToolCallParser, ATagThatIsOnlySpokenOfHidesNoCall) {
  Expect(ToolForm::kHermes, "I use <tool_call>: <tool_call>{\"name\": \"add\"}</tool_call>",
         "I use <tool_call>:[add {}]");
}

TEST(ToolCallParser, FindsCallsOfLlama) {
  Expect(ToolForm::kLlama, "{\"name\": \"add\", \"parameters\": {\"a\": \"}\\\"{\"}}",
         "[add {\"a\": \"}\\\"{\"}]");
  Expect(ToolForm::kLlama,
         "\n<|python_tag|>{\"name\": \"add\", \"parameters\": {}}; {\"name\": \"look_up\", "
         "\"parameters\": {\"w\": 1}}\n",
         "[add {}][look_up {\"w\": 1}]");
  Expect(ToolForm::kLlama,
         R"({"type": "function", "function": {"name": "add", "parameters": {"a": 1}}})",
         "[add {\"a\": 1}]");
}

TEST(ToolCallParser, WhatIsNoCallOfLlamaStaysText) {
  for (const char* text :
       {"plain", "{\"name\": \"rm\", \"parameters\": {}}", "{\"json\": [1, 2]}", "{ never closed",
        "text {\"name\": \"add\", \"parameters\": {}}", "<|python", "  ", "{]}", "[1, 2]"}) {
    Expect(ToolForm::kLlama, text, text);
  }
  Expect(ToolForm::kLlama, "{\"name\": \"add\", \"parameters\": {}} and text", "[add {}] and text");
}

TEST(ToolCallParser, FindsCallsOfMistral) {
  Expect(ToolForm::kMistral,
         R"([TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}, )"
         R"({"name": "look_up", "arguments": {"w": "x"}}])",
         "[add {\"a\": 1}][look_up {\"w\": \"x\"}]");
  Expect(ToolForm::kMistral,
         R"(I add.[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]look_up[CALL_ID]123456789[ARGS]{"w":2})",
         "I add.[add {\"a\": 1}][look_up {\"w\":2}]");
  Expect(ToolForm::kMistral, R"([TOOL_CALLS]add{"a": 1} and)", "[add {\"a\": 1}] and");
  Expect(ToolForm::kMistral, R"([{"name": "add", "arguments": {"a": 1}}])", "[add {\"a\": 1}]");
  for (const char* text :
       {"[TOOL_CALLS]rm[ARGS]{}", "[TOOL_CALLS]add[ARGS]3", "[TOOL_CALLS]add[ARG", "[TOOL_CA",
        "[TOOL_CALLS] [1]", "[TOOL_CALLS]add[CALL_ID]1234", "[1, 2]", "[TOOL_CALLS]rm{}"}) {
    Expect(ToolForm::kMistral, text, text);
  }
}

TEST(ToolCallParser, FindsCallsInFencesAndBareOnesAtTheBeginning) {
  const std::string add = "{\n  \"name\": \"add\",\n  \"arguments\": {\"a\": 1}\n}";
  for (const ToolForm form : {ToolForm::kHermes, ToolForm::kJson, ToolForm::kMistral}) {
    Expect(form, absl::StrCat("```json\n", add, "\n```"), "[add {\"a\": 1}]");
    Expect(form, absl::StrCat("So:\n```\n[", add, ", ", add, "]\n```\nDone."),
           "So:[add {\"a\": 1}][add {\"a\": 1}]\nDone.");
    Expect(form, absl::StrCat("\n", add), "[add {\"a\": 1}]");
    Expect(form, absl::StrCat("[", add, "]"), "[add {\"a\": 1}]");
    for (const std::string& text :
         {std::string("```python\nadd(1)\n```\n"), std::string("```json\n{\"a\": 1}\n```"),
          std::string("{\"name\": \"add\"}"), std::string("{\"x\": 1, \"name\": \"add\"}"),
          "Say " + add, std::string("`` ` ```js"), std::string("```\n\n```")}) {
      Expect(form, text, text);
    }
  }
  // Not beside calls in the model's own form.
  Expect(ToolForm::kHermes,
         absl::StrCat("<tool_call>", add, "</tool_call>\n```json\n", add, "\n```"),
         absl::StrCat("[add {\"a\": 1}]\n```json\n", add, "\n```"));
}

TEST(ToolCallParser, FindsCallsOfQwenCoder) {
  const std::string call = "<function=add>\n<parameter=a>\nx \"y\"\nz\n</parameter>\n</function>";
  const std::string expected = R"([add {"a": "x \"y\"\nz"}])";
  Expect(ToolForm::kQwenCoder, absl::StrCat("<tool_call>\n", call, "\n</tool_call>"), expected);
  Expect(ToolForm::kQwenCoder, absl::StrCat("So.\n", call, "\n</tool_call>"), "So." + expected);
  Expect(ToolForm::kQwenCoder,
         absl::StrCat("<tool_call>", call, "</tool_call>\n<tool_call>", call, "</tool_call>"),
         expected + expected);
  Expect(ToolForm::kQwenCoder, absl::StrCat(call, "\n", call), expected + expected);
  Expect(ToolForm::kQwenCoder, absl::StrCat(call, "\n<tool_call>\n", call, "\n</tool_call>"),
         expected + expected);
  for (const char* text :
       {"<tool_call>\n<function=rm>\n</function>\n</tool_call>", "<function=rm>\n</function>",
        "<functio", "<tool_call>\n<function=ad", "<tool_call><b></tool_call>"}) {
    Expect(ToolForm::kQwenCoder, text, text);
  }
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
