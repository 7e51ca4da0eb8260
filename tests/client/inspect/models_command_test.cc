#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/command/commands.h"
#include "client/command/exit_code.h"
#include "gpu_worker/model/model_families.h"
#include "tests/client/command_runner.h"

namespace retroinfer::client {
namespace {

CommandResult Models(const std::vector<std::string>& arguments) {
  return RunCommand(ModelsCommand, arguments);
}

TEST(ModelsCommandTest, PrintsTheTableOfFamilies) {
  const CommandResult result = Models({"models"});
  EXPECT_EQ(result.exit_code, kExitOk);
  EXPECT_EQ(result.out, ModelFamiliesMarkdown());
  EXPECT_EQ(result.err, "");
}

TEST(ModelsCommandTest, RefusesOptionsThatItDoesNotHave) {
  EXPECT_EQ(Models({"models", "--no-such-option"}).exit_code, kExitUsage);
}

}  // namespace
}  // namespace retroinfer::client
