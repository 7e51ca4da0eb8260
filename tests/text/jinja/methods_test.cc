#include "text/jinja/methods.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

using testing::HasSubstr;

TEST(MethodsTest, AsInJinjasSandbox) { ExpectGolden("methods", 10); }

TEST(MethodsTest, NothingCanBeChanged) {
  for (const char* const call : {"l.append(1)", "l.clear()", "l.pop()", "l.sort()", "l.extend([1])",
                                 "d.clear()", "d.pop(1)", "d.setdefault(1)", "d.update({})"}) {
    EXPECT_THAT(Render(Concat({"{% set l = [] %}{% set d = {} %}{{ ", call, " }}"})),
                HasSubstr("is unsafe"))
        << call;
  }
}

}  // namespace
}  // namespace retroinfer::jinja
