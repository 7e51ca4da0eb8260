#include "text/jinja/string_literal.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

using testing::HasSubstr;

TEST(StringLiteralTest, AsJinja) { ExpectGolden("string_literal", 8); }

TEST(StringLiteralTest, WhatIsNoCharacterIsRefused) {
  for (const char* const literal : {"\\ud800", "\\U00110000", "\\x1", "\\u123"}) {
    EXPECT_EQ(UnescapeString(literal).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(UnescapeString("\\N{DASH}").status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Render("\n{{ \"\\ud800\" }}"), HasSubstr("line 2: "));
}

}  // namespace
}  // namespace retroinfer::jinja
