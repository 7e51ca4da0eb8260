#include "text/jinja/parser.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

using testing::HasSubstr;

TEST(ParserTest, TagsThatAreMissingAreNamedWithTheirLine) {
  for (const char* const tag :
       {"block x", "extends 'x'", "include 'x'", "import 'x' as y", "do x", "autoescape true"}) {
    const absl::Status status = RenderText(Concat({"a\n{% ", tag, " %}"})).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << tag;
    EXPECT_THAT(std::string(status.message()), HasSubstr("line 2: the tag '"));
  }
  EXPECT_THAT(Render("{% for x in [] recursive %}{% endfor %}"), HasSubstr("a recursive loop"));
}

TEST(ParserTest, BlocksThatDoNotFitAreRefused) {
  EXPECT_EQ(Render("a\n{% if x %}\nb"),
            "error: line 3: expected 'endif', got the end of the template");
  EXPECT_EQ(Render("{% for x in y %}{% endif %}"),
            "error: line 1: Encountered unknown tag 'endif'");
  EXPECT_EQ(Render("{% for x in y %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}"),
            "error: line 1: 'break' outside of a loop");
  EXPECT_THAT(Render("{% if x y %}{% endif %}"), HasSubstr("expected '%}', got 'y'"));
  EXPECT_THAT(Render("{% set x %}a"), HasSubstr("expected 'endset'"));
}

TEST(ParserTest, NestingHasALimit) {
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{% if 1 %}";
  EXPECT_THAT(Render(deep), HasSubstr("blocks are nested deeper than 50"));
  std::string target;
  for (int i = 0; i < 100'000; ++i) target += "(";
  EXPECT_THAT(Render("{% for " + target), HasSubstr("error: line 1"));
  std::string many = "{% if 0 %}";
  for (int i = 0; i < 10'000; ++i) many += "{% elif 0 %}";
  EXPECT_EQ(Render(many + "{% else %}x{% endif %}"), "x");
}

}  // namespace
}  // namespace retroinfer::jinja
