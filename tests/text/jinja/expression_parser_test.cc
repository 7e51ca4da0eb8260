#include "text/jinja/expression_parser.h"

#include "tests/text/jinja/template_fixture.h"
#include "text/jinja/errors.h"

namespace retroinfer::jinja {
namespace {

using testing::HasSubstr;

TEST(ExpressionParserTest, AsJinja) { ExpectGolden("expression_parser", 30); }

std::string Repeat(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

std::string Output(const std::string& expression) { return Concat({"{{ ", expression, " }}"}); }

TEST(ExpressionParserTest, NestingHasALimit) {
  for (const char* const open : {"(", "[", "-", "not ", "{1:", "f(", "a[", "1 if 1 else "}) {
    EXPECT_THAT(Render(Output(Repeat(open, 100'000))), HasSubstr("error: line 1: ")) << open;
  }
  for (const char* const next : {"+ 1", ".a", "[0]", "()", "|trim", "** 1", "* 1", "is defined "}) {
    EXPECT_THAT(Render(Output(Concat({"a ", Repeat(next, 100'000)}))), HasSubstr("error: line 1: "))
        << next;
  }
  EXPECT_EQ(Render(Output(Concat({Repeat("(", 40), "1", Repeat(")", 40)}))), "1");
  EXPECT_EQ(Render(Output(Concat({"0", Repeat(" + 1", 150)}))), "150");
  EXPECT_EQ(Render(Output(Concat({"0", Repeat(" or 0", 5000)}))), "0");
  EXPECT_EQ(Render(Output(Concat({"0", Repeat(" ~ 1", 500)}))), Concat({"0", Repeat("1", 500)}));
}

}  // namespace
}  // namespace retroinfer::jinja
