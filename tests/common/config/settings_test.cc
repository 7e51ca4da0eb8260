#include "common/config/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/build_info/build_info.h"

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
    std::filesystem::remove(path_);
    for (const char* name : {"PORT", "HOST_NAME", "TAGS", "VERBOSE", "ARENA_BYTES", "WAIT"}) {
      ::unsetenv((std::string("RETROINFER_") + name).c_str());
    }
  }

  absl::Status Parse(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "program");
    return settings_.Parse(static_cast<int>(arguments.size()), arguments.data()).status();
  }
  std::string WriteFile(const std::string& text) {
    std::ofstream(path_) << text;
    return path_;
  }

  const std::string path_ =
      absl::StrCat(testing::TempDir(), "/retroinfer-settings-", ::getpid(), ".toml");
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

TEST_F(SettingsTest, NamesTheLineAndTheSettingThatWasMeant) {
  const std::string path = WriteFile("# a comment\nport = 2\n\narena-byts = \"1GiB\"\n");
  const std::string message(Parse({"--config", path.c_str()}).message());
  EXPECT_THAT(message,
              testing::HasSubstr(path + ", line 4, column 14: there is no setting 'arena-byts'"));
  EXPECT_THAT(message, testing::HasSubstr("did you mean arena-bytes?"));
  EXPECT_THAT(std::string(Parse({"--arena-byte=1"}).message()),
              testing::HasSubstr("did you mean --arena-bytes?"));
}

TEST_F(SettingsTest, SaysWhereABadValueCameFrom) {
  const std::string path = WriteFile("wait = \"soon\"\n");
  EXPECT_THAT(std::string(Parse({"--config", path.c_str()}).message()),
              testing::HasSubstr("(from " + path + ", line 1, column 8)"));
  ::setenv("RETROINFER_ARENA_BYTES", "lots", 1);
  EXPECT_THAT(std::string(Parse({}).message()),
              testing::HasSubstr("(from RETROINFER_ARENA_BYTES)"));
}

TEST_F(SettingsTest, AFileAsTheyWereBeforeTomlIsTakenWithAWarning) {
  const std::string path = WriteFile("port = 2\nwait = 3s\n");
  ASSERT_TRUE(Parse({"--config", path.c_str()}).ok());
  EXPECT_EQ(wait_, absl::Seconds(3));
  EXPECT_THAT(settings_.warnings(),
              testing::ElementsAre(testing::AllOf(testing::HasSubstr(path + ", line 2"),
                                                  testing::HasSubstr("wait = \"3s\""))));
}

// It may be a mistake in TOML, and the value not what was meant.
TEST_F(SettingsTest, AValueOfSuchAFileThatIsWrongIsExplained) {
  const std::string path = WriteFile("wait == \"3s\"\n");
  EXPECT_THAT(std::string(Parse({"--config", path.c_str()}).message()),
              testing::AllOf(testing::HasSubstr("is not a duration"),
                             testing::HasSubstr(path + ", line 1, column ")));
}

TEST_F(SettingsTest, AFileThatAllProgramsShareMaySetOthersToo) {
  // max-tokens is a setting, but not one of this program.
  const std::string path = WriteFile("max-tokens = 5\nport = 2\n");
  EXPECT_THAT(std::string(Parse({"--config", path.c_str()}).message()),
              testing::HasSubstr("but of another program"));
  ::setenv("RETROINFER_CONFIG", path.c_str(), 1);
  EXPECT_TRUE(Parse({}).ok());
  EXPECT_EQ(port_, 2);
  WriteFile("max-tokes = 5\n");
  EXPECT_FALSE(Parse({}).ok());
  ::unsetenv("RETROINFER_CONFIG");
}

TEST_F(SettingsTest, FilesThatAreNoneAreErrors) {
  EXPECT_THAT(std::string(Parse({"--config", "/"}).message()), testing::HasSubstr("is a folder"));
  EXPECT_THAT(std::string(Parse({"--config", "/nonexistent/file"}).message()),
              testing::HasSubstr("/nonexistent/file"));
  EXPECT_THAT(std::string(Parse({"--config", "/dev/zero"}).message()),
              testing::HasSubstr("is a device"));
}

TEST_F(SettingsTest, AVariableMayHaveANameOfItsOwn) {
  settings_.NameVariable("--port", "RETROINFER_STORE_LISTEN");
  ::setenv("RETROINFER_PORT", "3", 1);
  ::setenv("RETROINFER_STORE_LISTEN", "4", 1);
  EXPECT_TRUE(Parse({}).ok());
  EXPECT_EQ(port_, 4);
  ::unsetenv("RETROINFER_STORE_LISTEN");
}

TEST_F(SettingsTest, WarnsOfVariablesThatNobodyKnows) {
  ::setenv("RETROINFER_ARENA_BYTE", "1GiB", 1);
  ::setenv("RETROINFER_MODEL", "of another program", 1);
  EXPECT_TRUE(Parse({}).ok());
  ::unsetenv("RETROINFER_ARENA_BYTE");
  ::unsetenv("RETROINFER_MODEL");
  EXPECT_THAT(settings_.warnings(),
              testing::Contains("RETROINFER_ARENA_BYTE is no setting of any program; did you mean "
                                "RETROINFER_ARENA_BYTES?"));
  EXPECT_THAT(settings_.warnings(), testing::Not(testing::Contains(testing::HasSubstr("MODEL"))));
}

TEST_F(SettingsTest, VersionHasNameAndCommit) {
  const char* arguments[] = {"/usr/bin/program", "--version"};
  testing::internal::CaptureStdout();
  EXPECT_TRUE(settings_.Parse(2, arguments).ok());
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            std::string("program 1.2.3 (") + kBuildRevision + ")\n");
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
