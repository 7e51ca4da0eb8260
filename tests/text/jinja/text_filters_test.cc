#include "text/jinja/text_filters.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

using testing::HasSubstr;

TEST(TextFiltersTest, AsJinja) { ExpectGolden("text_filters", 20); }

TEST(TextFiltersTest, WidthsHaveLimits) {
  EXPECT_THAT(Render("{{ 'a'|indent(100000000) }}"), HasSubstr("over 1000"));
  EXPECT_THAT(Render("{{ [1]|tojson(indent=100000000) }}"), HasSubstr("over 1000"));
  EXPECT_THAT(Render("{{ 'a'|center(10 ** 17) }}"), HasSubstr("padded to"));
  EXPECT_THAT(Render("{{ 1.5|round(10 ** 9) }}"), HasSubstr("round() to"));
}

}  // namespace
}  // namespace retroinfer::jinja
