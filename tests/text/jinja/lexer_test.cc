#include "text/jinja/lexer.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

TEST(LexerTest, AsJinja) { ExpectGolden("lexer", 25); }

TEST(LexerTest, ErrorsNameTheLine) {
  EXPECT_EQ(Render("a\n\n{{ ! }}"), "error: line 3: unexpected character '!'");
  EXPECT_EQ(Render("a\r\n{# never closed"), "error: line 2: Missing end of comment tag");
  EXPECT_EQ(Render("{{ 1\n\n"), "error: line 1: the end of the {{ is missing");
  EXPECT_EQ(Render("\n{% if x"), "error: line 2: the end of the {% is missing");
  EXPECT_EQ(Render("{{ 1234567890123456789 }}"),
            "error: line 1: an integer has more than 18 digits");
  EXPECT_EQ(Render("a\xFF"), "error: the template is not valid UTF-8");
}

TEST(LexerTest, AtLineKeepsCodeAndPayload) {
  absl::Status status = absl::UnimplementedError("x");
  status.SetPayload("u", absl::Cord("p"));
  const absl::Status located = AtLine(7, status);
  EXPECT_EQ(located.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(located.message(), "line 7: x");
  EXPECT_EQ(located.GetPayload("u"), absl::Cord("p"));
}

}  // namespace
}  // namespace retroinfer::jinja
