#include "kv_store_service/server/store_main.h"

#include <gtest/gtest.h>

#include <string>

namespace retroinfer::kvstore {
namespace {

int RunWith(const char* argument) {
  std::string program = "kv_store_service", text = argument;
  char* arguments[] = {program.data(), text.data(), nullptr};
  return StoreMain(2, arguments);
}

TEST(StoreMainTest, OptionsThatAreWrongEndIt) {
  EXPECT_EQ(RunWith("--no-such-option"), 2);
  EXPECT_EQ(RunWith("--persist=sometimes"), 2);
  EXPECT_EQ(RunWith("--restore-threads=0"), 2);
}

TEST(StoreMainTest, HelpIsNoFailure) { EXPECT_EQ(RunWith("--help"), 0); }

}  // namespace
}  // namespace retroinfer::kvstore
