#include "text/jinja/list_filters.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

TEST(ListFiltersTest, AsJinja) { ExpectGolden("list_filters", 25); }

TEST(ListFiltersTest, SortingIsStable) {
  const std::string json =
      R"({"l": [{"k": 2, "v": "a"}, {"k": 1, "v": "b"}, {"k": 2, "v": "c"}, {"k": 1, "v": "d"}]})";
  EXPECT_EQ(Render("{{ l|sort(attribute='k')|map(attribute='v')|join }}", json), "bdac");
  EXPECT_EQ(Render("{{ l|sort(attribute='k', reverse=true)|map(attribute='v')|join }}", json),
            "acbd");
}

}  // namespace
}  // namespace retroinfer::jinja
