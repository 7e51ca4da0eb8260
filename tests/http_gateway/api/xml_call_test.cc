#include "http_gateway/api/xml_call.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace retroinfer::gateway {
namespace {

// Text as it is, calls as [name arguments]; what was not taken behind "|".
template <typename Call>
std::string Read(Call call, const std::string& text) {
  std::vector<AnswerPiece> pieces;
  std::string rest;
  for (size_t i = 0; i < text.size() && rest.empty(); ++i) {
    const auto verdict = call.Take(text[i], &pieces);
    if (verdict == Call::Verdict::kNone) rest = absl::StrCat("|", text.substr(i));
    if (verdict == Call::Verdict::kEnd && i + 1 < text.size())
      rest = absl::StrCat("...", text.substr(i + 1));
  }
  call.Finish(&pieces);
  std::string shown;
  for (const AnswerPiece& piece : pieces) {
    if (piece.kind == AnswerPiece::Kind::kCallBegin) shown += "[";
    shown += piece.text;
    if (piece.kind == AnswerPiece::Kind::kCallBegin) shown += " ";
    if (piece.kind == AnswerPiece::Kind::kCallEnd) shown += "]";
  }
  return shown + rest;
}

std::string ReadXml(const std::string& text) {
  ToolFunction function{.name = "f"};
  function.parameters = Json::parse(R"({"properties": {
      "s": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"},
      "o": {"type": "object"}, "ns": {"type": ["string", "null"]}}})");
  const CallableFunctions functions({function});
  return Read(XmlCall(functions), text);
}

std::string Parameter(const std::string& name, const std::string& value) {
  return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
}

TEST(XmlCall, ValuesAreReadByTheirTypes) {
  EXPECT_EQ(ReadXml("f>\n" + Parameter("s", "12") + Parameter("n", "12345678901234567890123") +
                    Parameter("b", "True") + Parameter("o", "{\"x\": [1,  2]}") +
                    Parameter("ns", "null") + "</function>"),
            R"([f {"s": "12", "n": 12345678901234567890123, "b": true, "o": {"x": [1,  2]}, )"
            R"("ns": null}])");
  EXPECT_EQ(ReadXml("f>" + Parameter("n", "many") + Parameter("ns", "x") + Parameter("q\"", "1") +
                    "</function>"),
            R"([f {"n": "many", "ns": "x", "q\"": "1"}])");
  EXPECT_EQ(ReadXml("f></function>"), "[f {}]");
}

TEST(XmlCall, OneLineEndBelongsToEachTag) {
  EXPECT_EQ(ReadXml("f>" + Parameter("s", "\n  x\n") + "</function>"), R"([f {"s": "\n  x\n"}])");
  EXPECT_EQ(ReadXml("f><parameter=s>x</parameter></function>"), R"([f {"s": "x"}])");
  EXPECT_EQ(ReadXml("f>" + Parameter("s", "") + "</function>"), R"([f {"s": ""}])");
  EXPECT_EQ(ReadXml("f>" + Parameter("s", "a </param\n</b> \n\n</parameter") + "</function>"),
            R"([f {"s": "a </param\n</b> \n\n</parameter"}])");
}

TEST(XmlCall, GivesNothingOutOfWhatIsNoCall) {
  EXPECT_EQ(ReadXml("g>\n</function>"), "|>\n</function>");
  EXPECT_EQ(ReadXml("f"), "");
}

TEST(XmlCall, WhatBreaksEndsTheCall) {
  EXPECT_EQ(ReadXml("f>text"), "[f {]|text");
  EXPECT_EQ(ReadXml("f>" + Parameter("s", "1") + Parameter("s", "2")),
            "[f {\"s\": \"1\"]|>\n2\n</parameter>\n");
  EXPECT_EQ(ReadXml("f>" + Parameter("s", "1") + "</tool_call>"),
            "[f {\"s\": \"1\"}]|tool_call>");  // forgotten, but clear
  EXPECT_EQ(ReadXml("f><parameter=s>\nab\n</par"), "[f {\"s\": \"ab\\n</par]");
  EXPECT_EQ(ReadXml("f><parameter=o>\n{\"a\": "), "[f {\"o\": {\"a\": ]");
}

}  // namespace
}  // namespace retroinfer::gateway
