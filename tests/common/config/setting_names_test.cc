#include "common/config/setting_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer::common {
namespace {

TEST(SettingNames, KnowTheSettingsOfAllPrograms) {
  EXPECT_EQ(VariableName("arena-bytes"), "RETROINFER_ARENA_BYTES");
  EXPECT_TRUE(IsSettingName("arena-bytes"));
  EXPECT_TRUE(IsSettingName("max-tokens"));
  EXPECT_FALSE(IsSettingName("arena_bytes"));
  EXPECT_THAT(KnownVariables(),
              testing::IsSupersetOf({"RETROINFER_ARENA_BYTES", "RETROINFER_STORE_LISTEN"}));
}

TEST(SettingNames, TellMistakesFromVariablesOfOthers) {
  for (const char* fine : {"PATH", "RETROINFER_MODEL", "RETROINFER_TEST_SEED",
                           "RETROINFER_SERVICE_HOST", "RETROINFER_SERVICE_PORT_GRPC",
                           "RETROINFER_PORT_50051_TCP_ADDR", "RETROINFER_STORE_LISTEN"}) {
    EXPECT_TRUE(IsExpectedVariable(fine, "x")) << fine;
  }
  EXPECT_TRUE(IsExpectedVariable("RETROINFER_PORT", "tcp://10.0.0.1:50051"));
  EXPECT_FALSE(IsExpectedVariable("RETROINFER_PORT", "50051"));
  EXPECT_FALSE(IsExpectedVariable("RETROINFER_MODEL_", "x"));
  EXPECT_FALSE(IsExpectedVariable("RETROINFER_", "x"));
}

TEST(NearestName, FindsWhatWasMeantAndNothingElse) {
  const std::vector<std::string> names = {"arena-bytes", "cache-bytes", "max-batch", "listen"};
  EXPECT_EQ(NearestName("arena-byts", names), "arena-bytes");
  EXPECT_EQ(NearestName("arean-bytes", names), "arena-bytes");
  EXPECT_EQ(NearestName("max_batch", names), "max-batch");
  EXPECT_EQ(NearestName("lisen", names), "listen");
  EXPECT_EQ(NearestName("temperature", names), "");
  EXPECT_EQ(NearestName("", names), "");
  EXPECT_EQ(NearestName(std::string(100'000, 'a'), names), "");
}

}  // namespace
}  // namespace retroinfer::common
