#include "http_gateway/json/json_scanner.h"

#include <gtest/gtest.h>

#include <string>

#include "http_gateway/json/strict_json.h"

namespace retroinfer::gateway {
namespace {

using Verdict = JsonScanner::Verdict;

// The text that was handed on, up to the end, and "!" behind it where a byte is invalid.
std::string Scan(const std::string& text) {
  JsonScanner scanner;
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const Verdict verdict = scanner.Take(text[i], &out);
    if (verdict == Verdict::kInvalid) return out + "!";
    if (verdict == Verdict::kEnd) return out + (i + 1 == text.size() ? "" : "...");
  }
  return scanner.CanEnd() ? out : out + "?";
}

TEST(JsonScanner, TakesEveryKindOfValue) {
  for (const char* text :
       {"{}", "[]", "{\"a\": [1, -2.5e+3, 0.0, 1E5], \"b\": {\"c\": null}}", "true", "false",
        "null", "\"x\\n\\u00e9\\\"\"", "[[], {}, \"\"]", "0", "-10", " 1.25", "[\n 1\t,\r2 ]"}) {
    EXPECT_EQ(Scan(text), text);
    EXPECT_TRUE(ParseStrictJson(text).ok()) << text;
  }
}

TEST(JsonScanner, RefusesTheFirstByteThatIsNoJson) {
  const std::pair<const char*, const char*> cases[] = {{"{a}", "{!"},
                                                       {"[1,]", "[1,!"},
                                                       {"{\"a\" 1}", "{\"a\" !"},
                                                       {"01", "0!"},
                                                       {"[01]", "[0!"},
                                                       {"-a", "-!"},
                                                       {"1.x", "1.!"},
                                                       {"[1e]", "[1e!"},
                                                       {"trux", "tru!"},
                                                       {"\"\\x\"", "\"\\!"},
                                                       {"\"\\u00g\"", "\"\\u00!"},
                                                       {"{\"a\":1,}", "{\"a\":1,!"},
                                                       {"[1}", "[1!"},
                                                       {"{\"a\":1]", "{\"a\":1!"},
                                                       {"'x'", "!"},
                                                       {"[1 2]", "[1 !"}};
  for (const auto& [text, scanned] : cases) EXPECT_EQ(Scan(text), scanned);
}

TEST(JsonScanner, EndsBehindTheValue) {
  EXPECT_EQ(Scan("{\"a\": \"}\"}}"), "{\"a\": \"}\"}...");
  EXPECT_EQ(Scan("{\"a\": [1"), "{\"a\": [1?");
  EXPECT_EQ(Scan("1."), "1.?");
}

TEST(JsonScanner, EscapesControlsWithinStringsOnly) {
  EXPECT_EQ(Scan("{\n\"a\": \"b\nc\td\"}"), "{\n\"a\": \"b\\nc\\u0009d\"}");
  EXPECT_EQ(Scan("{\x01"), "{!");
}

TEST(JsonScanner, BoundsTheDepth) {
  const std::string open(64, '['), close(64, ']');
  EXPECT_EQ(Scan(open + close), open + close);
  EXPECT_EQ(Scan(open + "["), open + "!");
}

}  // namespace
}  // namespace retroinfer::gateway
