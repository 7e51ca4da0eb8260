#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "client/command/commands.h"
#include "client/command/exit_code.h"
#include "tests/client/command_runner.h"
#include "tests/support/worker_harness.h"

namespace retroinfer::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ChatCommandTest : public ::testing::Test {
 protected:
  CommandResult Run(const std::string& input, std::vector<std::string> arguments = {}) {
    arguments.insert(arguments.begin(),
                     {"chat", "--address", worker_.address(), "--max-tokens", "2"});
    return RunCommand(ChatCommand, arguments, input);
  }
  std::string LastPrompt() {
    const GenerationRequest request = worker_.engine().last_request();
    return std::string(request.prompt.begin(), request.prompt.end());
  }

  WorkerHarness worker_;
};

TEST_F(ChatCommandTest, KeepsTheHistory) {
  const CommandResult result = Run("first question\nsecond question\n", {"--system", "be brief"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(worker_.engine().submitted(), 2);
  const std::string prompt = LastPrompt();
  EXPECT_THAT(prompt, HasSubstr("be brief"));
  EXPECT_THAT(prompt, HasSubstr("first question"));
  EXPECT_THAT(prompt, HasSubstr(result.out.substr(0, result.out.find('\n') - 1)));
  EXPECT_THAT(prompt, HasSubstr("second question"));
}

TEST_F(ChatCommandTest, ResetForgetsAllButTheSystemMessage) {
  Run("first question\n/reset\nsecond question\n", {"--system", "be brief"});
  EXPECT_THAT(LastPrompt(), HasSubstr("be brief"));
  EXPECT_THAT(LastPrompt(), Not(HasSubstr("first question")));
}

TEST_F(ChatCommandTest, SendsFilesAndShowsStatistics) {
  const std::string file = (worker_.folder() / "document.txt").string();
  std::ofstream(file) << "line one\nline two\n";
  const CommandResult result = Run("/stats\n/file " + file + "\n/stats\n/file /no/such\n/what\n");
  EXPECT_EQ(result.exit_code, kExitOk);
  EXPECT_THAT(LastPrompt(), HasSubstr("line one\nline two"));
  EXPECT_THAT(result.err, HasSubstr("[no answer yet]"));
  EXPECT_THAT(result.err, HasSubstr("2 generated"));
  EXPECT_THAT(result.err, HasSubstr("/no/such"));
  EXPECT_THAT(result.err, HasSubstr("unknown command /what"));
}

TEST_F(ChatCommandTest, AFailedTurnEndsAChatThatNobodyWatches) {
  const CommandResult result = Run(std::string(5000, 'x') + "\nnext\n");
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("CONTEXT_TOO_LONG"));
  EXPECT_EQ(worker_.engine().submitted(), 0);
}

TEST_F(ChatCommandTest, NoInputIsNoError) {
  EXPECT_EQ(Run("\n\n").exit_code, kExitOk);
  EXPECT_EQ(worker_.engine().submitted(), 0);
}

}  // namespace
}  // namespace retroinfer::client
