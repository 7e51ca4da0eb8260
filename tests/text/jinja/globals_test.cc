#include "text/jinja/globals.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

using testing::HasSubstr;

TEST(GlobalsTest, AsJinja) { ExpectGolden("globals", 9); }

TEST(GlobalsTest, TheClockIsTheCallers) {
  EXPECT_EQ(Render("{{ strftime_now('%d %b %Y %H:%M') }}"), "14 Nov 2023 22:13");
}

TEST(GlobalsTest, AnExceptionIsToldFromOtherErrors) {
  const absl::Status raised =
      RenderText("\n{{ raise_exception('roles must alternate') }}").status();
  EXPECT_EQ(raised.message(), "line 2: roles must alternate");
  EXPECT_TRUE(IsRaisedError(raised));
  EXPECT_FALSE(IsRaisedError(RenderText("{{ none + 1 }}").status()));
  EXPECT_LT(Render("{{ raise_exception('é' * 100000) }}").size(), 1100u);
}

TEST(GlobalsTest, ANamespaceHoldsNoOtherObjects) {
  for (const char* const value : {"ns", "[ns]", "{1: [ns]}", "range", "''.upper"}) {
    EXPECT_THAT(Render(Concat({"{% set ns = namespace() %}{% set ns.x = ", value, " %}"})),
                HasSubstr("a namespace can hold"))
        << value;
  }
}

}  // namespace
}  // namespace retroinfer::jinja
