#include "common/config/help_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace retroinfer::common {
namespace {

using ::testing::HasSubstr;

TEST(WrapText, BreaksBetweenWords) {
  EXPECT_EQ(WrapText("aa bb cc", 5, 0), "aa bb\ncc");
  EXPECT_EQ(WrapText("aa bb cc", 7, 2), "aa bb\n  cc");
  EXPECT_EQ(WrapText("aaaaaaaaaa b", 5, 0), "aaaaaaaaaa\nb");
  EXPECT_EQ(WrapText("a\n  b c", 80, 0), "a\n  b c");
  EXPECT_EQ(WrapText("", 80, 0), "");
}

TEST(HelpFormat, FitsEightyColumnsAndShowsDefaultsAndVariables) {
  CLI::App app(
      "A description that is long enough to be broken into more than one line of text, "
      "as those of programs are.");
  app.formatter(std::make_shared<HelpFormat>());
  app.option_defaults()->always_capture_default();
  int number = 7;
  std::string kind = "auto";
  std::vector<std::string> addresses = {"127.0.0.1:50051"};
  app.add_option("--number", number,
                 "How many, at the most, of all that is counted in this program")
      ->check(CLI::Range(1, 1024));
  app.add_option("--kind", kind, "Which")->check(CLI::IsMember({"auto", "cpu"}));
  app.add_option("--a-very-long-name-of-an-option", addresses, "Where");
  const std::string help = app.help();
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_THAT(help, HasSubstr("--number INT"));
  EXPECT_THAT(help, HasSubstr("[1 to 1024] [default: 7]"));
  EXPECT_THAT(help, HasSubstr("Which [auto, cpu] [default: auto]"));
  EXPECT_THAT(help, HasSubstr("Where [default: 127.0.0.1:50051]"));
}

}  // namespace
}  // namespace retroinfer::common
