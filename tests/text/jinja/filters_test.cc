#include "text/jinja/filters.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

using testing::HasSubstr;

TEST(FiltersTest, AreFoundByName) {
  EXPECT_NE(FindFilter("upper"), nullptr);
  EXPECT_NE(FindFilter("map"), nullptr);
  EXPECT_EQ(FindFilter("urlize"), nullptr);
}

TEST(FiltersTest, OneThatIsMissingIsRefusedWhereItIsUsed) {
  EXPECT_THAT(Render("a\n{{ 1|urlize }}"), HasSubstr("line 2: the filter 'urlize'"));
  EXPECT_EQ(Render("a{% if false %}{{ 1|urlize }}{% endif %}"), "a");
  EXPECT_EQ(RenderText("{{ 1|urlize }}").status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace retroinfer::jinja
