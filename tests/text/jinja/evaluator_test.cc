#include "text/jinja/evaluator.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

using testing::HasSubstr;

TEST(EvaluatorTest, ShortCircuits) {
  EXPECT_EQ(Render("{{ 1 or none.x.y }}{{ 0 and none.x.y }}{{ 2 if 1 else none.x.y }}"), "102");
  EXPECT_EQ(Render("{{ 1 > 2 > none.x.y }}"), "False");
}

TEST(EvaluatorTest, CallsWithStars) {
  EXPECT_EQ(Render("{% macro m(a, b, c=3) %}{{ a }}{{ b }}{{ c }}{% endmacro %}"
                   "{{ m(*[1, 2]) }} {{ m(1, **{'b': 5, 'c': 6}) }}"),
            "123 156");
  EXPECT_THAT(Render("{{ range(**{1: 2}) }}"), HasSubstr("keywords must be strings"));
  EXPECT_THAT(Render("{{ range(*1) }}"), HasSubstr("is not iterable"));
}

TEST(EvaluatorTest, LocateNamesOneLineOnly) {
  const absl::Status status = Locate(3, absl::InvalidArgumentError("x"));
  EXPECT_EQ(Locate(1, status).message(), "line 3: x");
}

}  // namespace
}  // namespace retroinfer::jinja
