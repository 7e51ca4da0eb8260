#include "gpu_worker/scheduler/batch_row_rate.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

class BatchRowRateTest : public testing::Test {
 protected:
  // Ten rounds a second with eight that decode, of whom one ends each `rounds` rounds.
  void Run(int rounds, double seconds, bool are_taken) {
    for (const double end = now_ + seconds; now_ < end; now_ += 0.1) {
      if (++round_ % rounds == 0) ++first_;
      SchedulerInput input;
      input.now = now_;
      for (uint64_t id = first_; id < first_ + 8; ++id) {
        input.requests.push_back({.id = id, .phase = RequestPhase::kDecoding});
      }
      rate_.Update(input, are_taken);
    }
  }

  BatchRowRate rate_;
  double now_ = 100;
  uint64_t first_ = 1;
  int round_ = 0;
};

TEST_F(BatchRowRateTest, NothingIsKnownWhileRowsAreFree) {
  Run(2, 30, false);
  EXPECT_EQ(rate_.SecondsUntilFree(10), 0);
}

TEST_F(BatchRowRateTest, AWaitingRequestWaitsForTheEndsOfThoseWithRows) {
  Run(5, 30, true);
  EXPECT_NEAR(rate_.SecondsUntilFree(10), 10 * 0.5, 0.5);
  EXPECT_EQ(rate_.SecondsUntilFree(0), 0);
  EXPECT_EQ(rate_.SecondsUntilFree(-3), 0);
}

TEST_F(BatchRowRateTest, FollowsWhatTheyDo) {
  Run(5, 60, true);
  Run(20, 60, true);
  EXPECT_NEAR(rate_.SecondsUntilFree(10), 10 * 2, 2);
}

TEST_F(BatchRowRateTest, ATimeWithFreeRowsSaysNothing) {
  Run(5, 30, true);
  const double before = rate_.SecondsUntilFree(10);
  Run(1000, 300, false);
  EXPECT_NEAR(rate_.SecondsUntilFree(10), before, 0.1 * before);
}

}  // namespace
}  // namespace retroinfer
