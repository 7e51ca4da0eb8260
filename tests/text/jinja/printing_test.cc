#include "text/jinja/printing.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

using testing::HasSubstr;

TEST(PrintingTest, AsPython) { ExpectGolden("printing", 20); }

TEST(PrintingTest, FunctionsAreNotShown) {
  EXPECT_THAT(Render("{{ range }}"), HasSubstr("cannot be shown"));
  EXPECT_THAT(Render("{{ [namespace()] }}"), HasSubstr("cannot be shown"));
  EXPECT_THAT(Render("{{ range(3) }}"), HasSubstr("make it a list"));
}

TEST(PrintingTest, WhatIsSharedManyTimesHasALimit) {
  const std::string source =
      "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}"
      "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}";
  EXPECT_THAT(Render(source + "{{ ns.x }}"), HasSubstr("that a template may"));
  EXPECT_THAT(Render(source + "{{ ns.x|tojson }}"), HasSubstr("that a template may"));
  EXPECT_THAT(Render(source + "{{ ns.x == ns.y }}"), HasSubstr("that a template may"));
}

TEST(PrintingTest, Integers) {
  EXPECT_EQ(IntText(0), "0");
  EXPECT_EQ(IntText(-120), "-120");
  EXPECT_EQ(IntText(-(Int{1} << 126) * 2), "-170141183460469231731687303715884105728");
}

}  // namespace
}  // namespace retroinfer::jinja
