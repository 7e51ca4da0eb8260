#include "gpu_worker/executor/command_result.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

TEST(CommandResultTest, TellsWhoLacksMemoryAndWhoFails) {
  CommandResult result;
  result.without_memory = {4};
  result.failed.push_back({5, absl::InternalError("the device")});
  EXPECT_TRUE(result.LacksMemory(4));
  EXPECT_FALSE(result.LacksMemory(5));
  EXPECT_EQ(result.FailureOf(4), nullptr);
  ASSERT_NE(result.FailureOf(5), nullptr);
  EXPECT_EQ(result.FailureOf(5)->message(), "the device");
  result.refused = result.step = absl::InternalError("all");
  result.rows.emplace_back();
  result.Clear();
  EXPECT_FALSE(result.LacksMemory(4));
  EXPECT_EQ(result.FailureOf(5), nullptr);
  EXPECT_TRUE(result.refused.ok() && result.step.ok() && result.rows.empty());
}

}  // namespace
}  // namespace retroinfer
