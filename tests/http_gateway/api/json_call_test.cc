#include "http_gateway/api/json_call.h"

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

class JsonCallTest : public ::testing::Test {
 protected:
  std::string Tagged(const std::string& text) { return Read(JsonCall(functions_, false), text); }
  std::string Bare(const std::string& text) { return Read(JsonCall(functions_, true), text); }

  const CallableFunctions functions_ = CallableFunctions::Named({"f"});
};

TEST_F(JsonCallTest, MembersMayComeInAnyOrder) {
  EXPECT_EQ(Tagged(R"({"name": "f", "arguments": {"a": 1}})"), R"([f {"a": 1}])");
  EXPECT_EQ(Tagged(R"({"x": [1, {"y": 2}], "n": 3, "parameters": {"a": 1} , "name":"f"})"),
            R"([f {"a": 1}])");
  EXPECT_EQ(Tagged(R"({"function": {"name": "f", "arguments": {}}, "id": "1"} )"), "[f {}]... ");
  EXPECT_EQ(Tagged(R"({"name": "\u0066"})"), "[f {}]");
}

TEST_F(JsonCallTest, GivesNothingOutOfWhatIsNoCall) {
  EXPECT_EQ(Tagged("[1]"), "|[1]");
  EXPECT_EQ(Tagged(R"({"name": "g", "arguments": {}})"), R"(|", "arguments": {}})");
  EXPECT_EQ(Tagged(R"({"name": 3})"), "|3}");
  EXPECT_EQ(Tagged(R"({"arguments": {}, "arguments": {}, "name": "f"})"), R"(|{}, "name": "f"})");
  EXPECT_EQ(Tagged(R"({"arguments": {}})"), "|}");
  EXPECT_EQ(Tagged(R"({"name": "f", "arguments": [1]})"), "|[1]}");
  EXPECT_EQ(Tagged("{\"name\": \"" + std::string(300, 'f')),
            absl::StrCat("|", std::string(300 - 256, 'f')));
}

TEST_F(JsonCallTest, ABareOneNeedsArgumentsAndNoOtherMembers) {
  EXPECT_EQ(Bare(R"({"type": "function", "name": "f", "arguments": {"a": 1}, "more": 1})"),
            R"([f {"a": 1}])");
  EXPECT_EQ(Bare(R"({"name": "f"})"), "|}");
  EXPECT_EQ(Bare(R"({"city": "x"})"), R"(|": "x"})");
}

TEST_F(JsonCallTest, ArgumentsThatBreakEndTheCall) {
  EXPECT_EQ(Tagged(R"({"name": "f", "arguments": {"a": x}})"), R"([f {"a": ]|x}})");
  EXPECT_EQ(Tagged(R"({"name": "f", "arguments": {"a)"), R"([f {"a])");
  EXPECT_EQ(Tagged(R"({"name": "f", "arguments": {} x)"), "[f {}]|x");
}

}  // namespace
}  // namespace retroinfer::gateway
