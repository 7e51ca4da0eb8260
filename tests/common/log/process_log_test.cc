#include "common/log/process_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpc/support/log.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "common/config/settings.h"

namespace retroinfer::common {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class ProcessLogTest : public ::testing::Test {
 protected:
  ProcessLogTest() {
    std::string pattern = (fs::temp_directory_path() / "retroinfer-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~ProcessLogTest() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  std::string Read(const std::string& name) const {
    FlushProcessLog();
    std::stringstream text;
    text << std::ifstream(Path(name)).rdbuf();
    return text.str();
  }

  fs::path folder_;
};

TEST_F(ProcessLogTest, LevelsAndNamesAreInTheLines) {
  ASSERT_TRUE(StartProcessLog("a_service", {.level = "warning", .file = Path("log")}).ok());
  spdlog::info("not this");
  spdlog::warn("{} is high", 7);
  spdlog::critical("bad");
  EXPECT_THAT(Read("log"), HasSubstr("Z warning a_service: 7 is high\n"));
  EXPECT_THAT(Read("log"), HasSubstr("Z error a_service: bad\n"));
  EXPECT_THAT(Read("log"), Not(HasSubstr("not this")));
  struct stat info {};
  ASSERT_EQ(::stat(Path("log").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0137, 0u);
}

TEST_F(ProcessLogTest, JsonIsAnotherForm) {
  ASSERT_TRUE(StartProcessLog("a_service", {.format = "json", .file = Path("log")}).ok());
  spdlog::info("two\nlines");
  EXPECT_THAT(Read("log"),
              HasSubstr(R"("level":"info","process":"a_service","message":"two\nlines"})"));
}

TEST_F(ProcessLogTest, AFileThatWasRenamedIsOpenedAgain) {
  ASSERT_TRUE(StartProcessLog("s", {.file = Path("log")}).ok());
  spdlog::info("first");
  FlushProcessLog();
  fs::rename(Path("log"), Path("log.1"));
  spdlog::info("second");
  ReopenProcessLog();
  spdlog::info("third");
  EXPECT_THAT(Read("log"), AllOf(HasSubstr("third"), Not(HasSubstr("second"))));
  EXPECT_THAT(Read("log.1"), AllOf(HasSubstr("second"), Not(HasSubstr("third"))));

  // A folder in its place: the log goes on where it was.
  fs::remove(Path("log"));
  fs::create_directory(Path("log"));
  ReopenProcessLog();
  fs::remove(Path("log"));
  ReopenProcessLog();
  spdlog::info("fourth");
  EXPECT_THAT(Read("log"), HasSubstr("fourth"));
}

TEST_F(ProcessLogTest, ErrorsOfGrpcAreLinesOfTheLog) {
  ASSERT_TRUE(StartProcessLog("s", {.file = Path("log")}).ok());
  gpr_log_verbosity_init();  // as the first channel or server does
  gpr_log(GPR_ERROR, "a handshake failed");
  EXPECT_THAT(Read("log"), HasSubstr("Z warning s: gRPC: a handshake failed (0 messages"));
}

TEST_F(ProcessLogTest, WhatCannotBeIsRefused) {
  EXPECT_EQ(StartProcessLog("s", {.level = "loud"}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(StartProcessLog("s", {.format = "xml"}).code(), absl::StatusCode::kInvalidArgument);
  const absl::Status status = StartProcessLog("s", {.file = Path("no/such/folder")});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no/such/folder"));
}

TEST_F(ProcessLogTest, HasOptions) {
  LogOptions options;
  Settings settings("test", "1");
  AddLogOptions(&settings, &options);
  const char* const arguments[] = {"p", "--log-level=debug", "--log-format=json", "--log-file=/x"};
  ASSERT_TRUE(settings.Parse(4, arguments).ok());
  EXPECT_EQ(options.level, "debug");
  EXPECT_EQ(options.format, "json");
  EXPECT_EQ(options.file, "/x");
}

}  // namespace
}  // namespace retroinfer::common
