#include "http_gateway/json/strict_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string ErrorOf(std::string_view text, const JsonLimits& limits = {}) {
  const auto value = ParseStrictJson(text, limits);
  EXPECT_FALSE(value.ok()) << text;
  if (value.ok()) return "";
  EXPECT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(common::ReasonOf(value.status()).reason, "INVALID_JSON");
  return std::string(value.status().message());
}

TEST(StrictJson, ReadsWhatIsJson) {
  const auto value =
      ParseStrictJson(R"( {"a": [1, -2, 2.5, true, null, "x\u00e9\n"], "b": {"c": {}}} )");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ((*value)["a"].dump(), "[1,-2,2.5,true,null,\"x\u00e9\\n\"]");
  EXPECT_TRUE((*value)["b"]["c"].empty());
  EXPECT_EQ(*ParseStrictJson("18446744073709551615"), 18446744073709551615ULL);
}

TEST(StrictJson, RefusesWhatIsNot) {
  for (const char* text :
       {"",    " ",           "{",        "[1,]",      "{\"a\":1,}",  "{'a':1}",
        "NaN", "{\"a\":NaN}", "Infinity", "-Infinity", "01",          "1.",
        ".5",  "+1",          "0x10",     "nul",       "[1] 2",       "{\"a\" 1}",
        "\"a", "// c\n1",     "\"\t\"",   "\"\\x\"",   "\"\\ud800\"", "\"\\udc00\\ud800\"",
        "[",   "]",           "{]"}) {
    ErrorOf(text);
  }
}

TEST(StrictJson, RefusesBytesThatAreNoUtf8AndDoesNotRepeatThem) {
  for (const std::string bytes :
       {"\xff", "\xc3", "\xe2\x82", "\xed\xa0\x80", "\xc0\xaf", "\xf5\x80\x80\x80"}) {
    const std::string error = ErrorOf("{\"a\": \"" + bytes + "\"}");
    EXPECT_THAT(error, Not(HasSubstr(bytes)));
    EXPECT_THAT(error, HasSubstr("at byte"));
  }
}

TEST(StrictJson, RefusesNumbersThatNoDoubleHolds) {
  EXPECT_THAT(ErrorOf("[1e999]"), HasSubstr("out of range"));
  EXPECT_TRUE(ParseStrictJson("1e300").ok());
}

TEST(StrictJson, RefusesAKeyThatIsThereTwice) {
  EXPECT_THAT(ErrorOf(R"({"a": 1, "a": 1})"), HasSubstr("twice"));
  EXPECT_THAT(ErrorOf(R"([{"x": {"a": 1, "b": 2, "\u0061": 3}}])"), HasSubstr("twice"));
  EXPECT_TRUE(ParseStrictJson(R"({"a": {"a": 1}, "b": {"a": 1}})").ok());
}

TEST(StrictJson, BoundsTheDepth) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(ParseStrictJson(nested(64)).ok());
  EXPECT_THAT(ErrorOf(nested(65)), HasSubstr("nested more than 64 deep"));
  ErrorOf(std::string(10'000'000, '['));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_THAT(ErrorOf(objects), HasSubstr("deep"));
}

TEST(StrictJson, BoundsTheNumberOfValues) {
  const JsonLimits limits{.depth_max = 4, .values_max = 3};
  EXPECT_TRUE(ParseStrictJson("[1,2]", limits).ok());
  EXPECT_THAT(ErrorOf("[1,2,3]", limits), HasSubstr("more than 3 values"));
}

}  // namespace
}  // namespace retroinfer::gateway
