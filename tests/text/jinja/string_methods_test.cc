#include "text/jinja/string_methods.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

using testing::HasSubstr;

TEST(StringMethodsTest, AsPython) { ExpectGolden("string_methods", 15); }

TEST(StringMethodsTest, OneThatIsMissingIsNamed) {
  EXPECT_TRUE(IsOtherStringMethod("zfill"));
  EXPECT_FALSE(IsOtherStringMethod("strip"));
  EXPECT_EQ(FindStringMethod("zfill"), nullptr);
  EXPECT_THAT(Render("{{ 'a'.zfill(3) }}"), HasSubstr("line 1: the method str.zfill()"));
}

}  // namespace
}  // namespace retroinfer::jinja
