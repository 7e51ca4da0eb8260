#include "text/jinja/json_value.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

TEST(JsonValueTest, WhatIsNoJsonIsRefused) {
  Workspace workspace({}, absl::UnixEpoch(), absl::UTCTimeZone());
  for (const char* const text : {"", "{", "[1,]", "nul", "\"\\ud800\"", "1e999", "\"\xFF\""}) {
    EXPECT_EQ(ParseJson(workspace, text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
  EXPECT_FALSE(ParseJson(workspace, std::string(100, '[') + std::string(100, ']')).ok());
}

TEST(JsonValueTest, Numbers) {
  EXPECT_EQ(Render("{{ a }} {{ b }} {{ c }}",
                   R"({"a": 18446744073709551615, "b": -9223372036854775808, "c": 1.0})"),
            "18446744073709551615 -9223372036854775808 1.0");
}

}  // namespace
}  // namespace retroinfer::jinja
