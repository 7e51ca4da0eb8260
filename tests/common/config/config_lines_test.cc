#include "common/config/config_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace retroinfer::common {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Values(const std::string& text) {
  const auto entries = ParseConfigLines(text);
  EXPECT_TRUE(entries.ok()) << text << ": " << entries.status();
  if (!entries.ok() || entries->size() != 1) return {"?"};
  return entries->front().values;
}

TEST(ParseConfigLines, TakesValuesInEveryForm) {
  EXPECT_THAT(Values("name = bare value # comment"), ElementsAre("bare value"));
  EXPECT_THAT(Values("name=\"a # b\"  # comment"), ElementsAre("a # b"));
  EXPECT_THAT(Values("name = 'it \"is\"'"), ElementsAre("it \"is\""));
  EXPECT_THAT(Values("name ="), ElementsAre(""));
  EXPECT_THAT(Values("name"), ElementsAre("true"));
  EXPECT_THAT(Values("name # comment"), ElementsAre("true"));
  EXPECT_THAT(Values("name = [\"a,b\", c ,'d']"), ElementsAre("a,b", "c", "d"));
  EXPECT_THAT(Values("name = []"), ElementsAre());
  EXPECT_THAT(Values("name = a,b"), ElementsAre("a,b"));
  EXPECT_THAT(Values("name = x\r\n"), ElementsAre("x"));
}

TEST(ParseConfigLines, CountsLinesAndSkipsComments) {
  const auto entries = ParseConfigLines("# one\n; two\n[default]\n\n\"x-y\" = 1\nz = 2");
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ(entries->front().name, "x-y");
  EXPECT_EQ(entries->front().line, 5);
  EXPECT_EQ(entries->back().line, 6);
}

TEST(ParseConfigLines, SaysWhichLineIsWrong) {
  for (const char* bad : {"= 1", "x = \"a", "x = 'a\" ", "x = [a, b", "x = [a b] c", "x = \"a\" b",
                          "[section]", "x = [\"a\" \"b\"]"}) {
    const auto entries = ParseConfigLines(std::string("ok = 1\n") + bad);
    EXPECT_EQ(entries.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(entries.status().message()), HasSubstr("line 2: ")) << bad;
  }
}

}  // namespace
}  // namespace retroinfer::common
