#include "common/door/api_key.h"

#include <gtest/gtest.h>

#include "common/status/error_reason.h"

namespace retroinfer::common {
namespace {

TEST(ApiKey, WithoutAKeyEverythingPasses) {
  const ApiKey key("");
  EXPECT_FALSE(key.required());
  EXPECT_TRUE(key.Check("").ok());
  EXPECT_TRUE(key.Check("Bearer anything").ok());
}

TEST(ApiKey, OnlyTheKeyPasses) {
  const ApiKey key("secret");
  EXPECT_TRUE(key.required());
  EXPECT_TRUE(key.Check("Bearer secret").ok());
  for (const char* wrong : {"", "secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secret1",
                            "Bearer Secret", "bearer secret", "Basic secret"}) {
    const absl::Status status = key.Check(wrong);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << wrong;
    EXPECT_EQ(ReasonOf(status).reason, "API_KEY_REQUIRED") << wrong;
  }
}

}  // namespace
}  // namespace retroinfer::common
