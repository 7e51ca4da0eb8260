#include "gpu_worker/scheduler/preempting_requests.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

constexpr double kSeconds = PreemptingRequests::kReservedSeconds;

class PreemptingRequestsTest : public testing::Test {
 protected:
  PreemptingRequestsTest() {
    constexpr double kWeights[] = {1, 1};
    constexpr bool kWants[] = {true, true};
    shares_.Update(kWeights, kWants);
  }

  TenantShares shares_;
  PreemptingRequests preempting_{shares_};
  const RequestDescription one_{.id = 1, .phase = RequestPhase::kWaiting};
};

TEST_F(PreemptingRequestsTest, AReservationLastsForAWhileAndIsNotProlongedUnasked) {
  EXPECT_FALSE(preempting_.Contains(one_, 100));
  preempting_.Add(one_, 100);
  EXPECT_TRUE(preempting_.Contains(one_, 100 + kSeconds / 2));
  preempting_.AddOnce(one_, 100 + kSeconds / 2);
  EXPECT_FALSE(preempting_.Contains(one_, 100 + kSeconds));
  preempting_.Add(one_, 100 + kSeconds / 2);
  EXPECT_TRUE(preempting_.Contains(one_, 100 + kSeconds));
}

TEST_F(PreemptingRequestsTest, UpdateForgetsThoseWhoseReservationIsOver) {
  preempting_.Add(one_, 100);
  preempting_.Update(100 + kSeconds / 2);
  EXPECT_FALSE(preempting_.empty());
  preempting_.Update(100 + kSeconds);
  EXPECT_TRUE(preempting_.empty());
}

TEST_F(PreemptingRequestsTest, OnlyOneThatWaitsForMemoryAndNotForTheArenaIsFound) {
  SchedulerInput input;
  input.now = 100;
  input.requests = {{.id = 2, .phase = RequestPhase::kWaiting}, one_};
  EXPECT_EQ(preempting_.FindWaiting(input), nullptr);
  preempting_.Add(one_, 100);
  EXPECT_EQ(preempting_.FindWaiting(input), &input.requests[1]);
  input.requests[1].arena_is_full = true;
  EXPECT_EQ(preempting_.FindWaiting(input), nullptr);
  input.requests[1].arena_is_full = false;
  input.requests[1].phase = RequestPhase::kReserving;
  EXPECT_EQ(preempting_.FindWaiting(input), nullptr) << "it has its blocks";
}

TEST_F(PreemptingRequestsTest, ALowerClassOrATenantServedFarMoreMayBePreempted) {
  const RequestDescription high{.id = 2, .priority = 0, .tenant = 0};
  const RequestDescription low{.id = 3, .priority = 1, .tenant = 0};
  const RequestDescription others{.id = 4, .priority = 0, .tenant = 1};
  EXPECT_TRUE(preempting_.MayBePreempted(low, high));
  EXPECT_FALSE(preempting_.MayBePreempted(high, low));
  EXPECT_FALSE(preempting_.MayBePreempted(others, high));
  shares_.Charge(1, 20000);
  EXPECT_TRUE(preempting_.MayBePreempted(others, high));
  EXPECT_FALSE(preempting_.MayBePreempted(high, others)) << "never both ways";
  EXPECT_FALSE(preempting_.MayBePreempted(others, low)) << "the class comes first";
}

}  // namespace
}  // namespace retroinfer
