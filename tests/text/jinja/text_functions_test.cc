#include "text/jinja/text_functions.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

using testing::HasSubstr;

Text Own(std::string_view bytes) { return Text(bytes, true); }

TEST(TextFunctionsTest, Strip) {
  EXPECT_EQ(Strip(Own(" \u3000a b\x1c\n"), std::nullopt, {}).bytes(), "a b");
  EXPECT_EQ(Strip(Own("ééaé"), "é", {.back = false}).bytes(), "aé");
  EXPECT_EQ(Strip(Own("   "), std::nullopt, {}).bytes(), "");
}

TEST(TextFunctionsTest, Cases) {
  EXPECT_EQ(Upper(Own("straße")).bytes(), "STRASSE");
  EXPECT_EQ(Title(Own("they're x2y")).bytes(), "They'Re X2Y");
  EXPECT_EQ(TitleFilter(Own("they're x-y")).bytes(), "They're X-Y");
  EXPECT_EQ(Capitalize(Own("éCOLE")).bytes(), "École");
  EXPECT_EQ(Lower(Own("ÀB")).bytes(), "àb");
}

TEST(TextFunctionsTest, ReplacingCannotFillTheMemory) {
  EXPECT_THAT(Render("{% set a = 'x' * 100000 %}{{ a.replace('x', a) }}"),
              HasSubstr("that a template may"));
  EXPECT_THAT(Render("{% set a = 'x' * 100000 %}{{ a|join(a) }}"),
              HasSubstr("that a template may"));
}

}  // namespace
}  // namespace retroinfer::jinja
