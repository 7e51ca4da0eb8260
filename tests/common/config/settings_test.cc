#include "common/config/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace retroinfer::common {
namespace {

class SettingsTest : public testing::Test {
 protected:
  SettingsTest() : settings_("test", "1.2.3") {
    settings_.app().add_option("--port", port_, "a port");
    settings_.app().add_option("--host-name", host_, "a name");
    settings_.app().add_option("--tags", tags_, "several")->delimiter(',');
    settings_.app().add_flag("--verbose", verbose_, "a flag");
    settings_.AddByteSize("--arena-bytes", &bytes_, "a size");
    settings_.AddDuration("--wait", &wait_, "a duration");
  }
  ~SettingsTest() override {
    for (const char* name : {"PORT", "HOST_NAME", "TAGS", "VERBOSE", "ARENA_BYTES", "WAIT"}) {
      ::unsetenv((std::string("RETROINFER_") + name).c_str());
    }
  }

  absl::Status Parse(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "program");
    return settings_.Parse(static_cast<int>(arguments.size()), arguments.data()).status();
  }
  std::string WriteFile(const std::string& text) {
    const std::string path = testing::TempDir() + "settings_test.toml";
    std::ofstream(path) << text;
    return path;
  }

  Settings settings_;
  int port_ = 1;
  std::string host_ = "default";
  std::vector<std::string> tags_;
  bool verbose_ = false;
  uint64_t bytes_ = 1024;
  absl::Duration wait_ = absl::Seconds(10);
};

TEST_F(SettingsTest, KeepsDefaults) {
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_EQ(port_, 1);
  EXPECT_EQ(bytes_, 1024u);
  EXPECT_EQ(wait_, absl::Seconds(10));
}

TEST_F(SettingsTest, FlagBeatsEnvironmentBeatsFileBeatsDefault) {
  const std::string path =
      WriteFile("port=2\nhost-name=\"file\"\narena-bytes=\"2KiB\"\nwait=\"1s\"\n");
  ::setenv("RETROINFER_PORT", "3", 1);
  ::setenv("RETROINFER_ARENA_BYTES", "3KiB", 1);
  ::setenv("RETROINFER_HOST_NAME", "", 1);  // empty counts as not set
  ASSERT_TRUE(Parse({"--arena-bytes", "4KiB", "--config", path.c_str()}).ok());
  EXPECT_EQ(port_, 3);
  EXPECT_EQ(host_, "file");
  EXPECT_EQ(bytes_, 4096u);
  EXPECT_EQ(wait_, absl::Seconds(1));
}

TEST_F(SettingsTest, ListsAndFlagsComeFromTheEnvironmentToo) {
  ::setenv("RETROINFER_TAGS", "a,b", 1);
  ::setenv("RETROINFER_VERBOSE", "true", 1);
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_THAT(tags_, testing::ElementsAre("a", "b"));
  EXPECT_TRUE(verbose_);
}

TEST_F(SettingsTest, AListOnTheCommandLineReplacesTheEnvironment) {
  ::setenv("RETROINFER_TAGS", "a,b", 1);
  ASSERT_TRUE(Parse({"--tags=c"}).ok());
  EXPECT_THAT(tags_, testing::ElementsAre("c"));
}

TEST_F(SettingsTest, RefusesBadValuesByName) {
  const absl::Status status = Parse({"--arena-bytes", "lots"});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("arena-bytes"));
}

TEST_F(SettingsTest, RefusesBadDurationsUnknownFlagsAndFiles) {
  EXPECT_FALSE(Parse({"--wait", "soon"}).ok());
  EXPECT_FALSE(Parse({"--unknown"}).ok());
  EXPECT_FALSE(Parse({"--config", "/nonexistent/file"}).ok());
  EXPECT_FALSE(Parse({"--config", WriteFile("no-such-option=1\n").c_str()}).ok());
}

TEST_F(SettingsTest, HelpEndsTheProgramWithoutAnError) {
  const char* arguments[] = {"program", "--help"};
  testing::internal::CaptureStdout();
  const auto outcome = settings_.Parse(2, arguments);
  EXPECT_THAT(testing::internal::GetCapturedStdout(), testing::HasSubstr("RETROINFER_HOST_NAME"));
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(*outcome, Settings::Outcome::kExit);
}

TEST(IsGiven, KnowsBothForms) {
  const std::vector<std::string> arguments = {"--listen=here", "--model", "/m", "--listener=there"};
  EXPECT_TRUE(IsGiven(arguments, "--listen"));
  EXPECT_TRUE(IsGiven(arguments, "--model"));
  EXPECT_FALSE(IsGiven(arguments, "--list"));
  EXPECT_FALSE(IsGiven(arguments, "/m/x"));
}

}  // namespace
}  // namespace retroinfer::common
