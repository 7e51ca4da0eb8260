#include "tests/support/storage/crash_point.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace retroinfer::kvstore {
namespace {

TEST(CrashPointTest, KillsAtTheNthTime) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hook = ParseCrashPoint("put-payload:2");
  ASSERT_TRUE(hook.ok());
  (*hook)(StorageStage::kPutBegun);
  (*hook)(StorageStage::kPutPayload);
  (*hook)(StorageStage::kPutCommitted);
  EXPECT_EXIT((*hook)(StorageStage::kPutPayload), ::testing::KilledBySignal(SIGKILL), "");
}

TEST(CrashPointTest, RefusesWhatItDoesNotKnow) {
  for (const char* text : {"", "put-payload", "put-payload:0", "put-payload:x", "other:1", ":1"}) {
    const auto hook = ParseCrashPoint(text);
    EXPECT_TRUE(absl::IsInvalidArgument(hook.status())) << text;
    EXPECT_NE(hook.status().message().find("delete-committed"), absl::string_view::npos);
  }
}

}  // namespace
}  // namespace retroinfer::kvstore
