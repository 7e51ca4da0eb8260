#include "gpu_worker/executor/round_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr Work kRound = {.steps = 1, .step_rows = 4, .passes = 2, .pass_rows = 512};

class RoundLogTest : public testing::Test {
 protected:
  // A round that took so many times what was expected.
  std::string Add(double times, double at_seconds) {
    return log_.Add(costs_, kRound, times * costs_.Seconds(kRound),
                    absl::UnixEpoch() + absl::Seconds(at_seconds));
  }
  void SetUp() override { costs_.Observe(kRound, 0.05); }

  CostModel costs_;
  RoundLog log_;
};

TEST_F(RoundLogTest, WhatWasExpectedIsNotWorthALine) {
  EXPECT_THAT(Add(1.1, 0), IsEmpty());
  EXPECT_THAT(Add(0.1, 100), IsEmpty());
  EXPECT_THAT(log_.Add(costs_, {.passes = 1, .pass_rows = 512}, 100, absl::UnixEpoch()), IsEmpty())
      << "nobody waits for a token meanwhile";
}

TEST_F(RoundLogTest, TheWorstRoundOfAnIntervalIsToldOnce) {
  EXPECT_THAT(Add(2, 0), HasSubstr("took 100.0 ms, expected 50.0"));
  EXPECT_THAT(Add(2, 1), IsEmpty());
  EXPECT_THAT(Add(4, 2), IsEmpty());
  EXPECT_THAT(Add(3, 3), IsEmpty());
  EXPECT_THAT(Add(1, 11), HasSubstr("took 200.0 ms"));
  EXPECT_THAT(Add(1, 30), IsEmpty());
}

TEST_F(RoundLogTest, EachPartIsTold) {
  EXPECT_THAT(DescribeRound(costs_, kRound, 0.1),
              AllOf(HasSubstr("1 steps"), HasSubstr("4 rows of steps"), HasSubstr("2 passes"),
                    HasSubstr("512 rows of passes"), Not(HasSubstr("cache"))));
}

}  // namespace
}  // namespace retroinfer
