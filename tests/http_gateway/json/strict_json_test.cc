#include "http_gateway/json/strict_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

using ::testing::HasSubstr;

TEST(StrictJson, IsTheValueInTheOrderOfTheText) {
  const std::string text =
      R"({"type":"function","a":[1,-2,2.5,true,null,"é\n"],"":{"z":{},"b":[]},"u":18446744073709551615})";
  const auto value = ParseStrictJson(text);
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(value->dump(), text);
  EXPECT_EQ((*value)["u"], 18446744073709551615ULL);
}

TEST(StrictJson, RefusalsHaveAReason) {
  for (const char* text : {"{", "{\"a\": 1, \"a\": 2}", "\xff", "[1e999]"}) {
    const auto value = ParseStrictJson(text);
    EXPECT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(common::ReasonOf(value.status()).reason, "INVALID_JSON") << text;
  }
}

TEST(StrictJson, BodiesAreBounded) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(ParseStrictJson(nested(64)).ok());
  EXPECT_THAT(std::string(ParseStrictJson(nested(65)).status().message()),
              HasSubstr("nested deeper than 64"));
  std::string many = "[0";
  for (int i = 0; i < 4'500'000; ++i) many += ",0";
  EXPECT_THAT(std::string(ParseStrictJson(many + "]").status().message()),
              HasSubstr("more than 4500000 values"));
}

}  // namespace
}  // namespace retroinfer::gateway
