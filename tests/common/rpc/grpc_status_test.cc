#include "common/rpc/grpc_status.h"

#include <gtest/gtest.h>

namespace retroinfer::common {
namespace {

TEST(GrpcStatusTest, KeepsCodesAndMessagesBothWays) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "message");
    EXPECT_EQ(static_cast<int>(ToGrpcStatus(status).error_code()), code);
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);
  }
}

}  // namespace
}  // namespace retroinfer::common
