#include "common/clock/steady_now.h"

#include <gtest/gtest.h>

namespace retroinfer::common {
namespace {

TEST(SteadyNow, GoesOnAsTheSteadyClockDoes) {
  const auto steady_begin = std::chrono::steady_clock::now();
  const absl::Time begin = SteadyNow();
  absl::Time last = begin;
  for (int i = 0; i < 10'000; ++i) {
    const absl::Time now = SteadyNow();
    ASSERT_GE(now, last);
    last = now;
  }
  EXPECT_LE(last - begin, absl::FromChrono(std::chrono::steady_clock::now() - steady_begin));
}

TEST(SteadyNow, TimesOfTheWallClockStayAsFarAway) {
  const absl::Time before = SteadyNow();
  const absl::Time limit = SteadyTimeOf(absl::Now() + absl::Hours(1));
  const absl::Time after = SteadyNow();
  // The two clocks are not read in the same moment.
  EXPECT_GE(limit, before + absl::Hours(1) - absl::Seconds(1));
  EXPECT_LE(limit, after + absl::Hours(1) + absl::Seconds(1));
  EXPECT_EQ(SteadyTimeOf(absl::InfiniteFuture()), absl::InfiniteFuture());
}

}  // namespace
}  // namespace retroinfer::common
