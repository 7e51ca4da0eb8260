#include "text/jinja/renderer.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

using testing::HasSubstr;

TEST(RendererTest, AsJinja) { ExpectGolden("renderer", 35); }

TEST(RendererTest, ErrorsNameTheLine) {
  EXPECT_EQ(Render("a\nb\n{{ x.y }}"), "error: line 3: 'x' is undefined");
  EXPECT_EQ(Render("{% for i in [1] %}\n{% if i %}\n{{ i + 'a' }}\n{% endif %}{% endfor %}"),
            "error: line 3: unsupported operand types for +: 'int' and 'str'");
  EXPECT_EQ(Render("{% macro m() %}\n\n{{ none.x + 1 }}{% endmacro %}\n\n\n{{ m() }}"),
            "error: line 3: 'NoneType object' has no attribute 'x'");
  EXPECT_EQ(Render("\n{% for a, b in [[1]] %}{% endfor %}"),
            "error: line 2: expected 2 values to unpack, got 1");
}

TEST(RendererTest, EndlessTemplatesEnd) {
  EXPECT_THAT(Render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
              HasSubstr("calls are nested deeper than 400"));
  const std::string loops =
      "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}";
  EXPECT_THAT(Render(loops, "{}", {.steps_max = 100'000}), HasSubstr("100000 steps"));
  EXPECT_THAT(Render("{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", "{}",
                     {.output_bytes_max = 1'000'000}),
              HasSubstr("writes more than the 1000000 bytes"));
  EXPECT_THAT(Render("{% set ns = namespace(s='x') %}{% for i in range(99) %}"
                     "{% set ns.s = ns.s + ns.s %}{% endfor %}"),
              HasSubstr("bytes that a template may have"));
  EXPECT_THAT(Render("{% set ns = namespace(s=[]) %}{% for i in range(999) %}"
                     "{% set ns.s = [ns.s] %}{% endfor %}"),
              HasSubstr("nested deeper than 100"));
}

TEST(RendererTest, AMacroThatLeftItsBlock) {
  EXPECT_THAT(Render("{% set l = [] %}{% for i in [1] %}{% macro m() %}{% endmacro %}"
                     "{{ m() }}{% endfor %}done"),
              "done");
}

}  // namespace
}  // namespace retroinfer::jinja
