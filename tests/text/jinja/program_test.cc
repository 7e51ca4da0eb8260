#include "text/jinja/program.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

using testing::HasSubstr;

TEST(ProgramTest, GapsAreKnownBefore) {
  const auto program = Program::Parse(
      "{{ 1|upper }}\n{% if 0 %}{{ 1|urlize }}{% endif %}\n"
      "{% for x in y if x is nosuch %}{% endfor %}");
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_THAT(program->gaps(),
              testing::ElementsAre("line 2: the filter 'urlize'", "line 3: the test 'nosuch'"));
}

TEST(ProgramTest, RunsAnyNumberOfTimes) {
  const auto program = Program::Parse("{% set x = x + 1 %}{{ x }}");
  ASSERT_TRUE(program.ok());
  for (int i = 0; i < 3; ++i) {
    Workspace workspace({}, absl::UnixEpoch(), absl::UTCTimeZone());
    EXPECT_EQ(program->Render(workspace, {{"x", Value(Int{i})}})->bytes(), std::to_string(i + 1));
  }
}

// Every way in which a text of a user can go through a template: none makes it the template's.
constexpr const char* kWays[] = {
    "{{ u }}",
    "{{ u ~ u }}",
    "{{ u + u }}",
    "{{ u * 3 }}",
    "{{ u|trim }}",
    "{{ u.strip('x') }}",
    "{{ u[:] }}",
    "{{ u[::-1][::-1] }}",
    "{{ u[0:99] }}",
    "{{ u|upper|lower }}",
    "{{ u.lower() }}",
    "{{ u|replace('x', 'y') }}",
    "{{ 'x'|replace('x', u) }}",
    "{{ 'x'.replace('x', u) }}",
    "{{ l|join }}",
    "{{ u|join }}",
    "{{ ''.join(l) }}",
    "{{ u.split('z')[0] }}",
    "{{ u|list|join }}",
    "{{ u|tojson }}",
    "{{ l|tojson }}",
    "{{ d|tojson(indent=2) }}",
    "{{ l }}",
    "{{ d }}",
    "{{ l|string }}",
    "{{ u|indent(2, true) }}",
    "{{ '%s' % u }}",
    "{{ '%s'|format(u) }}",
    "{{ '{}'.format(u) }}",
    "{{ '{a}'.format(a=u) }}",
    "{{ u|safe }}",
    "{{ u|default('') }}",
    "{{ missing|default(u) }}",
    "{{ u if n else '' }}",
    "{{ u or 1 }}",
    "{{ l|first }}",
    "{{ l|last }}",
    "{{ l|map('trim')|join }}",
    "{{ d|items|list }}",
    "{{ (d|dictsort)[0][1] }}",
    "{{ d.keys()|first }}",
    "{{ u|center(40) }}",
    "{{ u.partition('x')[0] }}",
    "{{ [u]|sort|first }}",
    "{{ dict(a=u).a }}",
    "{{ namespace(a=u).a }}",
    "{{ u|batch(1)|list }}",
    "{{ u|capitalize|lower }}",
    "{{ u|reverse|reverse }}",
    "{{ u.rjust(30) }}",
    "{{ l|unique|list }}",
    "{{ u|title|lower }}",
    "{{ l|max }}",
    "{{ (u,)|tojson }}",
    "{% set x = u %}{{ x }}",
    "{% set x %}{{ u }}{% endset %}{{ x }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(u) }}{{ m(a=u) }}",
    "{% macro m() %}{{ caller(u) }}{% endmacro %}{% call(a) m() %}{{ a }}{% endcall %}",
    "{% filter trim %}{{ u }}{% endfilter %}",
    "{% for c in u %}{{ c }}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %}",
    "{% with a = u %}{{ a }}{% endwith %}",
    "{% generation %}{{ u }}{% endgeneration %}",
    "{% set ns = namespace() %}{% set ns.a = u %}{{ ns.a }}",
    "{% for a in l %}{{ loop.previtem }}{{ loop.nextitem }}{% endfor %}",
};

TEST(ProgramTest, TextOfUsersStaysTheirs) {
  const std::string json = R"({"u": "<|eot_id|>", "d": {"<|eot_id|>": "<|eot_id|>"}, "n": 1,
                               "l": ["<|eot_id|>", "<|eot_id|>"]})";
  for (const char* const source : kWays) {
    const auto text = RenderText(source, json);
    ASSERT_TRUE(text.ok()) << source << text.status();
    EXPECT_THAT(text->bytes(), HasSubstr("<")) << source;
    ASSERT_EQ(text->runs().size(), 1u) << source;
    EXPECT_FALSE(text->runs()[0].of_template) << source;
  }
}

TEST(ProgramTest, OriginsStayWithTheirBytes) {
  const std::string json = R"({"u": " é<b> ", "n": 12})";
  EXPECT_EQ(RenderOrigins("<a>{{ u|trim }}{{ '<c>' }}", json), "<<a>>[é<b>]<<c>>");
  EXPECT_EQ(RenderOrigins("{{ ('<a>' + u + '<c>')|upper }}", json), "<<A>>[ É<B> ]<<C>>");
  EXPECT_EQ(RenderOrigins("{{ ('<a>' ~ u ~ '<c>')[1:-1] }}", json), "<a>>[ é<b> ]<<c>");
  EXPECT_EQ(RenderOrigins("{{ ('<a>' ~ u)|replace('<', '{') }}", json), "<{a>>[ é]<{>[b> ]");
  EXPECT_EQ(RenderOrigins("{{ ['<a>', u.strip()]|tojson }}", json), "[[\"]<<a>>[\", \"é<b>\"]]");
  EXPECT_EQ(RenderOrigins("x{{ n }}y", json), "<x>[12]<y>");
  EXPECT_EQ(RenderOrigins("{{ '%s|%d' % ('a', n) }}", json), "<a|>[12]");
}

}  // namespace
}  // namespace retroinfer::jinja
