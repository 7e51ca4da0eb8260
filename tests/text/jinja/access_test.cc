#include "text/jinja/access.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

TEST(AccessTest, AsJinja) { ExpectGolden("access", 15); }

TEST(AccessTest, AKeyIsFoundBehindAMethodOfTheSameName) {
  const std::string json = R"({"d": {"items": 5, "x": 6}})";
  EXPECT_EQ(Render("{{ d['items'] }} {{ d.x }} {{ d.items()|length }}", json), "5 6 2");
}

TEST(AccessTest, CharactersNotBytes) {
  EXPECT_EQ(Render("{{ s[0] }}{{ s[-1] }}{{ s[1:] }}{{ s|length }}", R"({"s": "é日😀"})"), "é😀日😀3");
}

}  // namespace
}  // namespace retroinfer::jinja
