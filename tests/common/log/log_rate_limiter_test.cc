#include "common/log/log_rate_limiter.h"

#include <gtest/gtest.h>

namespace retroinfer::common {
namespace {

TEST(LogRateLimiterTest, LetsOneThroughPerIntervalAndCountsTheRest) {
  LogRateLimiter limiter(absl::Seconds(5));
  const absl::Time start = absl::UnixEpoch();
  EXPECT_EQ(limiter.Admit(start), 0u);
  EXPECT_EQ(limiter.Admit(start), std::nullopt);
  EXPECT_EQ(limiter.Admit(start + absl::Seconds(4)), std::nullopt);
  EXPECT_EQ(limiter.Admit(start + absl::Seconds(5)), 2u);
  EXPECT_EQ(limiter.Admit(start + absl::Seconds(20)), 0u);
}

TEST(LogRateLimiterTest, LetsABurstThrough) {
  LogRateLimiter limiter(absl::Seconds(5), 3);
  const absl::Time start = absl::UnixEpoch();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limiter.Admit(start + absl::Seconds(i)), 0u);
  EXPECT_EQ(limiter.Admit(start + absl::Seconds(4)), std::nullopt);
  EXPECT_EQ(limiter.Admit(start + absl::Seconds(5)), 1u);
  EXPECT_EQ(limiter.Admit(start + absl::Seconds(5)), 0u);
}

}  // namespace
}  // namespace retroinfer::common
