#include "client/command/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/client/command_runner.h"

namespace retroinfer::client {
namespace {

using ::testing::HasSubstr;

int TestCommand(int argc, const char* const* argv, const Streams& streams) {
  int number = 0;
  common::Settings settings("A test.", "1.2.3");
  settings.app().add_option("--number", number, "A number");
  if (const auto done = ParseArguments(settings, argc, argv, streams)) return *done;
  return number == 7 ? Fail(streams, argv[0], "seven", kExitFailed) : kExitOk;
}

TEST(CommandLine, ExitCodesTellWhatHappened) {
  EXPECT_EQ(RunCommand(TestCommand, {"test", "--number=1"}).exit_code, kExitOk);
  const CommandResult failed = RunCommand(TestCommand, {"test", "--number=7"});
  EXPECT_EQ(failed.exit_code, kExitFailed);
  EXPECT_EQ(failed.err, "retroinfer test: seven\n");
  const CommandResult usage = RunCommand(TestCommand, {"test", "--nonsense"});
  EXPECT_EQ(usage.exit_code, kExitUsage);
  EXPECT_THAT(usage.err, HasSubstr("retroinfer test: "));
  EXPECT_THAT(usage.err, HasSubstr("--nonsense"));
}

TEST(CommandLine, HelpAndVersionEndWell) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(RunCommand(TestCommand, {"test", "--help"}).exit_code, kExitOk);
  EXPECT_EQ(RunCommand(TestCommand, {"test", "--version"}).exit_code, kExitOk);
  const std::string out = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(out, HasSubstr("retroinfer test"));
  EXPECT_THAT(out, HasSubstr("1.2.3"));
}

TEST(CommandLine, AFullDiskIsNamedHoweverLongTheText) {
  for (const size_t size : {1, 100'000}) {
    std::FILE* const full = std::fopen("/dev/full", "w");
    EXPECT_THAT(std::string(WriteResults(std::string(size, 'x'), full).message()),
                HasSubstr("No space left"));
    std::fclose(full);
  }
}

}  // namespace
}  // namespace retroinfer::client
