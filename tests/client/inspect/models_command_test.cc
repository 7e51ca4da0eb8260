#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/command/commands.h"
#include "client/command/exit_code.h"
#include "gpu_worker/model/model_families.h"
#include "tests/client/command_runner.h"

namespace retroinfer::client {
namespace {

TEST(ModelsCommandTest, PrintsTheTableOfFamilies) {
  const CommandResult result = RunCommand(ModelsCommand, {"models"});
  EXPECT_EQ(result.exit_code, kExitOk);
  EXPECT_EQ(result.out, ModelFamiliesMarkdown());
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(RunCommand(ModelsCommand, {"models", "--no-such-option"}).exit_code, kExitUsage);
}

}  // namespace
}  // namespace retroinfer::client
