#include "text/jinja/operators.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

using testing::HasSubstr;

TEST(OperatorsTest, AsPython) { ExpectGolden("operators", 25); }

TEST(OperatorsTest, IntegersHaveALimit) {
  EXPECT_EQ(Render("{{ 2 ** 126 }}"), "85070591730234615865843651857942052864");
  EXPECT_THAT(Render("{{ 2 ** 127 }}"), HasSubstr("127 bits"));
  EXPECT_THAT(Render("{{ 2 ** 100000000 }}"), HasSubstr("127 bits"));
  EXPECT_EQ(Render("{{ (-2) ** 127 // -1 if false else 1 ** 999999999999999 }}"), "1");
  EXPECT_THAT(Render("{{ 2 ** 126 + 2 ** 126 }}"), HasSubstr("127 bits"));
  EXPECT_THAT(Render("{{ 2 ** 64 * 2 ** 64 }}"), HasSubstr("127 bits"));
}

TEST(OperatorsTest, RepeatingCannotFillTheMemory) {
  EXPECT_THAT(Render("{{ ['x'] * 2147483648 }}"), HasSubstr("error: line 1"));
  EXPECT_THAT(Render("{{ 'xxxxxxxx' * 2147483647 }}"), HasSubstr("bytes that a template may"));
  EXPECT_EQ(Render("{{ '' * 99999999999 }}|"), "|");
}

}  // namespace
}  // namespace retroinfer::jinja
