#include "text/jinja/format.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

using testing::HasSubstr;

TEST(FormatTest, AsPython) { ExpectGolden("format", 8); }

TEST(FormatTest, WidthsHaveALimit) {
  EXPECT_THAT(Render("{{ '%99999999999d' % 1 }}"), HasSubstr("a number over"));
  EXPECT_THAT(Render("{{ '{:99999999999}'.format(1) }}"), HasSubstr("a number over"));
  EXPECT_THAT(Render("{{ '%.99999f' % 1 }}"), HasSubstr("a number over"));
}

TEST(FormatTest, WhatIsMissingIsNamed) {
  EXPECT_THAT(Render("{{ '%e' % 1 }}"), HasSubstr("the format %e"));
  EXPECT_THAT(Render("{{ '{a.b}'.format(a=1) }}"), HasSubstr("error: line 1"));
}

}  // namespace
}  // namespace retroinfer::jinja
