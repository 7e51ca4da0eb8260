#include "text/jinja/text.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

TEST(TextTest, RunsAreMergedAndCut) {
  Text text("ab", true);
  text.Append("cd", true);
  text.Append("", false);
  text.Append("ef", false);
  text.Append(Text("gh", false));
  text.Append("ij", true);
  EXPECT_EQ(text.bytes(), "abcdefghij");
  EXPECT_THAT(std::vector<Text::Run>(text.runs().begin(), text.runs().end()),
              testing::ElementsAre(Text::Run{4, true}, Text::Run{8, false}, Text::Run{10, true}));
  for (size_t begin = 0; begin <= text.size(); ++begin) {
    for (size_t end = begin; end <= text.size(); ++end) {
      Text joined = text.Part(0, begin);
      joined.Append(text.Part(begin, end));
      joined.Append(text.Part(end, text.size()));
      EXPECT_EQ(joined.bytes(), text.bytes());
      EXPECT_TRUE(std::equal(joined.runs().begin(), joined.runs().end(), text.runs().begin(),
                             text.runs().end()));
    }
  }
  EXPECT_TRUE(text.Part(3, 3).runs().empty());
}

}  // namespace
}  // namespace retroinfer::jinja
