#include "common/rpc/loopback.h"

#include <gtest/gtest.h>

namespace retroinfer::common {
namespace {

TEST(IsLoopback, TellsThisMachineFromOthers) {
  for (const char* address :
       {"127.0.0.1:1", "127.8.9.1:50051", "localhost:0", "[::1]:50051", "unix:/run/x.sock"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "127.0.0.1.example:1",
                              "localhost.example:1", "", "::1", "*:50051"}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

}  // namespace
}  // namespace retroinfer::common
