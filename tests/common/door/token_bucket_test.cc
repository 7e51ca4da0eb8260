#include "common/door/token_bucket.h"

#include <gtest/gtest.h>

#include <random>

namespace retroinfer::common {
namespace {

const absl::Time kBegin = absl::UnixEpoch() + absl::Hours(1);

TEST(TokenBucketTest, GivesItsBurstAtOnceAndItsRateThen) {
  TokenBucket bucket(10, 5);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(bucket.Take(kBegin));
  EXPECT_FALSE(bucket.Take(kBegin));
  EXPECT_EQ(bucket.NextAt(kBegin), kBegin + absl::Milliseconds(100));
  EXPECT_FALSE(bucket.Has(kBegin + absl::Milliseconds(99)));
  EXPECT_TRUE(bucket.Take(kBegin + absl::Milliseconds(100)));
  EXPECT_FALSE(bucket.Take(kBegin + absl::Milliseconds(100)));
}

TEST(TokenBucketTest, HoldsNoMoreThanItsBurst) {
  TokenBucket bucket(10, 5);
  const absl::Time later = kBegin + absl::Hours(1);
  ASSERT_TRUE(bucket.Take(kBegin));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(bucket.Take(later));
  EXPECT_FALSE(bucket.Take(later));
}

TEST(TokenBucketTest, DebtIsGainedBackFirst) {
  TokenBucket bucket(10, 1);
  for (int i = 0; i < 4; ++i) bucket.Charge(kBegin);
  EXPECT_EQ(bucket.NextAt(kBegin), kBegin + absl::Milliseconds(400));
  EXPECT_FALSE(bucket.Has(kBegin + absl::Milliseconds(399)));
  EXPECT_TRUE(bucket.Has(kBegin + absl::Milliseconds(400)));
}

// Whoever waits for a token asks for the time, and asks for the token then: no rate and no moment
// may let him turn round.
TEST(TokenBucketTest, ATokenIsThereWhenItWasPromisedAndNeverPromisedForNow) {
  std::minstd_rand random(1);
  for (int run = 0; run < 2000; ++run) {
    const double per_second = std::uniform_real_distribution<double>(0.1, 1e5)(random);
    const double burst = std::uniform_real_distribution<double>(1, 200)(random);
    TokenBucket bucket(per_second, burst);
    absl::Time now = kBegin;
    for (int step = 0; step < 1000; ++step) {
      now += absl::Nanoseconds(std::uniform_int_distribution<int>(0, 2'000'000)(random));
      if (bucket.Take(now)) continue;
      const absl::Time next = bucket.NextAt(now);
      ASSERT_GT(next, now) << per_second << " a second, " << burst << " at once";
      ASSERT_FALSE(bucket.Has(next - absl::Nanoseconds(1)));
      ASSERT_TRUE(bucket.Has(next));
      if (step % 2 == 0) now = next;
    }
  }
}

}  // namespace
}  // namespace retroinfer::common
