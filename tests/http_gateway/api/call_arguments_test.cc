#include "http_gateway/api/call_arguments.h"

#include <gtest/gtest.h>

namespace retroinfer::gateway {
namespace {

// What was handed on; "!" behind it where a byte is invalid, "?" where there is no end.
std::string Read(const std::string& text) {
  CallArguments arguments;
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const CallArguments::Verdict verdict = arguments.Take(text[i], &out);
    if (verdict == CallArguments::Verdict::kInvalid) return out + "!";
    if (verdict == CallArguments::Verdict::kEnd) return i + 1 == text.size() ? out : out + "...";
  }
  return out + "?";
}

TEST(CallArguments, HandsAnObjectOnAsItIs) {
  EXPECT_EQ(Read(R"( {"a":  1e400, "b": "\u00e9"})"), R"({"a":  1e400, "b": "\u00e9"})");
  EXPECT_EQ(Read("{\"a\": \"x\ny\"}"), R"({"a": "x\ny"})");
  EXPECT_EQ(Read(R"({"a": 1)"), R"({"a": 1?)");
  EXPECT_EQ(Read("{'a': 1}"), "{!");
}

TEST(CallArguments, HandsOnWhatAStringHolds) {
  EXPECT_EQ(Read(R"("{\"a\": \"x\\ny\"}")"), R"({"a": "x\ny"})");
  EXPECT_EQ(Read(R"(" {\n\"a\": 1 } ")"), "{\n\"a\": 1 }");
  EXPECT_EQ(Read(R"("{\"a\": 1")"), R"({"a": 1!)");
  EXPECT_EQ(Read(R"("{} x")"), "{}!");
  EXPECT_EQ(Read(R"("text")"), "!");
}

TEST(CallArguments, NothingIsAnEmptyObject) {
  EXPECT_EQ(Read("null"), "{}");
  EXPECT_EQ(Read("\"\""), "{}");
  EXPECT_EQ(Read("\"  \""), "{}");
  EXPECT_EQ(Read("nil"), "!");
}

TEST(CallArguments, OtherValuesAreNone) {
  for (const char* text : {"3", "[1]", "true", "}"}) EXPECT_EQ(Read(text), "!") << text;
}

}  // namespace
}  // namespace retroinfer::gateway
