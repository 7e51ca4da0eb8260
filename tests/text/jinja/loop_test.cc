#include "text/jinja/loop.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

using testing::HasSubstr;

TEST(LoopTest, AsJinja) { ExpectGolden("loop", 5); }

TEST(LoopTest, WhatIsMissingIsNamed) {
  EXPECT_THAT(Render("{% for i in [1] %}{{ loop.changed(i) }}{% endfor %}"),
              HasSubstr("line 1: loop.changed"));
}

}  // namespace
}  // namespace retroinfer::jinja
