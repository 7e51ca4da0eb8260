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

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Values(const std::string& text) {
  const auto entries = ParseConfig(text);
  EXPECT_TRUE(entries.ok()) << text << ": " << entries.status();
  if (!entries.ok() || entries->size() != 1) return {"?"};
  return entries->front().values;
}

TEST(ParseConfig, TakesValuesInEveryForm) {
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

TEST(ParseConfig, CountsLinesAndSkipsComments) {
  const auto entries = ParseConfig("# one\n; two\n[default]\n\n\"x-y\" = 1\nz = 2");
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ(entries->front().name, "x-y");
  EXPECT_EQ(entries->front().line, 5);
  EXPECT_EQ(entries->back().line, 6);
}

TEST(ParseConfig, SaysWhichLineIsWrong) {
  for (const char* bad : {"= 1", "x = \"a", "x = 'a\" ", "x = [a, b", "x = [a b] c", "x = \"a\" b",
                          "[section]", "x = [\"a\" \"b\"]"}) {
    const auto entries = ParseConfig(std::string("ok = 1\n") + bad);
    EXPECT_EQ(entries.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(entries.status().message()), HasSubstr("line 2: ")) << bad;
  }
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
