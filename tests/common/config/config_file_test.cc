#include "common/config/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace retroinfer::common {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The values of the only entry of a file that is right.
std::vector<std::string> Values(const std::string& text) {
  const auto file = ParseConfig(text);
  EXPECT_TRUE(file.ok()) << text << ": " << file.status();
  if (!file.ok() || file->entries.size() != 1) return {"?"};
  EXPECT_EQ(file->warning, "") << text;
  return file->entries.front().values;
}

std::string ErrorOf(const std::string& text) {
  const absl::Status status = ParseConfig(text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(status.message());
}

TEST(ParseConfig, TakesValuesAsTheCommandLineHasThem) {
  EXPECT_THAT(Values("name = \"a # b\"  # comment"), ElementsAre("a # b"));
  EXPECT_THAT(Values("name = 'C:\\a'"), ElementsAre("C:\\a"));
  EXPECT_THAT(Values("name = \"a\\u00e4\\tb\""), ElementsAre("a\xC3\xA4\tb"));
  EXPECT_THAT(Values("name = \"/b\xC3\xBC"
                     "cher\""),
              ElementsAre("/b\xC3\xBC"
                          "cher"));
  EXPECT_THAT(Values("name = 131_072"), ElementsAre("131072"));
  EXPECT_THAT(Values("name = -3"), ElementsAre("-3"));
  EXPECT_THAT(Values("name = 0.9"), ElementsAre("0.9"));
  EXPECT_THAT(Values("name = 1e-05"), ElementsAre("1e-05"));
  EXPECT_THAT(Values("name = inf"), ElementsAre("inf"));
  EXPECT_THAT(Values("name = true"), ElementsAre("true"));
  EXPECT_THAT(Values("name = false"), ElementsAre("false"));
  EXPECT_THAT(Values("name = []"), ElementsAre());
  EXPECT_THAT(Values("name = [\n \"a,b\", # first\n 3,\n]\n"), ElementsAre("a,b", "3"));
  EXPECT_THAT(Values("\"name\" = \"x\"\r\n"), ElementsAre("x"));
}

TEST(ParseConfig, EntriesHaveThePlacesOfTheirValues) {
  const auto file = ParseConfig("# one\nz-a = 1\n\nb = \"2\"\n");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->entries.size(), 2u);
  EXPECT_EQ(file->entries[0].name, "z-a");
  EXPECT_EQ(file->entries[0].line, 2);
  EXPECT_EQ(file->entries[0].column, 7);
  EXPECT_EQ(file->entries[1].name, "b");
  EXPECT_EQ(file->entries[1].line, 4);
  EXPECT_EQ(file->entries[1].column, 5);
}

TEST(ParseConfig, MistakesHaveALineAndAColumn) {
  EXPECT_THAT(ErrorOf("ok = 1\nx = \"a\n"), HasSubstr("line 2, column 7: "));
  EXPECT_THAT(ErrorOf("ok = 1\nx = [\"a\" \"b\"]"), HasSubstr("line 2, column "));
  EXPECT_THAT(ErrorOf("ok = 1\n[section]\nx = 1"),
              AllOf(HasSubstr("line 2, column 1: "), HasSubstr("no sections here, but 'section'")));
  EXPECT_THAT(ErrorOf("x = [[1], 2]"), HasSubstr("line 1, column 6: x has a value in its list"));
  EXPECT_THAT(ErrorOf("= 1"), HasSubstr("line 1, column 1: "));
  EXPECT_THAT(ErrorOf("\xE2\x82\xAC = 1\nx = \"a"), HasSubstr("line 1: a character that is not"));
}

TEST(ParseConfig, WhatWasUnderstoodBeforeStillIsWithTheMending) {
  const auto file = ParseConfig("port = 2\narena-bytes = 8GiB  # big\nlisten = a:1,b:2\n");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->entries.size(), 3u);
  EXPECT_THAT(file->entries[1].values, ElementsAre("8GiB"));
  EXPECT_THAT(file->warning, AllOf(HasSubstr("line 2, column "), HasSubstr("TOML"),
                                   HasSubstr("write it as: arena-bytes = \"8GiB\"")));
  EXPECT_THAT(ParseConfig("json")->warning, HasSubstr("write it as: json = true"));
  EXPECT_THAT(ParseConfig("l = [a, 'b\"c']")->warning,
              HasSubstr("write it as: l = [\"a\", \"b\\\"c\"]"));
  EXPECT_THAT(ParseConfig("; a comment\nx = 1")->warning, HasSubstr("comments behind '#'"));
  EXPECT_THAT(ParseConfig("[default]\nx = 1")->warning, HasSubstr("take headings out"));
  // What is written as the warning says has none.
  EXPECT_EQ(ParseConfig("arena-bytes = \"8GiB\"\nl = [\"a\", \"b\\\"c\"]\njson = true")->warning,
            "");
}

TEST(ParseConfig, DeepNestingIsRefused) {
  const std::string deep(100'000, '[');
  EXPECT_FALSE(ParseConfig("x = " + deep).ok());
}

// A FIFO would be waited for, and a device has no end.
TEST(ReadConfigFile, ReadsRegularFilesAlone) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/retroinfer-config-", ::getpid());
  std::filesystem::create_directories(folder);
  const std::string fifo = folder + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, folder, std::string("/dev/zero")}) {
    const absl::Status status = ReadConfigFile(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_THAT(std::string(status.message()), HasSubstr("needs a regular file")) << path;
  }
  EXPECT_TRUE(absl::IsNotFound(ReadConfigFile(folder + "/none").status()));
  std::ofstream(folder + "/file") << "a = 1\n";
  EXPECT_TRUE(ReadConfigFile(folder + "/file").ok());
  std::ofstream(folder + "/file") << std::string(8 << 20, '#');
  EXPECT_FALSE(ReadConfigFile(folder + "/file").ok());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace retroinfer::common
