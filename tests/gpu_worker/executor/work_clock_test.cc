#include "gpu_worker/executor/work_clock.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "tests/support/backends.h"

namespace retroinfer {
namespace {

constexpr Work kPass = {.passes = 1, .pass_rows = 1000};

class WorkClockTest : public testing::TestWithParam<test_support::BackendParam> {
 protected:
  WorkClockTest()
      : backend_(GetParam().create()),
        clock_(WorkClock::Create(*backend_->device, *backend_->stream, costs_).value()) {}

  // All that was measured so far.
  Work Measured() {
    for (const MeasuredWork& measured : clock_.TakeMeasured()) {
      work_ += measured.work;
      seconds_ += measured.seconds;
    }
    return work_;
  }

  std::unique_ptr<test_support::Backend> backend_;
  const CostModel costs_;
  WorkClock clock_;
  Work work_;
  double seconds_ = 0;
};

TEST_P(WorkClockTest, WhatWasDoneIsMeasured) {
  clock_.Begin();
  absl::SleepFor(absl::Milliseconds(50));  // stands for what the device takes
  ASSERT_TRUE(clock_.Enqueued(kPass).ok());
  ASSERT_TRUE(backend_->stream->Synchronize().ok());
  ASSERT_TRUE(clock_.Poll().ok());
  EXPECT_EQ(Measured().pass_rows, kPass.pass_rows);
  EXPECT_GE(seconds_, 0.05);
  EXPECT_TRUE(clock_.TakeMeasured().empty()) << "told twice";
}

TEST_P(WorkClockTest, TimeWithoutWorkIsNotCounted) {
  for (int round = 0; round < 2; ++round) {
    clock_.Begin();
    absl::SleepFor(absl::Milliseconds(5));
    clock_.Synchronized(kPass);
    // Nothing is on its way: time goes by.
    ASSERT_TRUE(clock_.Poll().ok());
    EXPECT_EQ(Measured().passes, round + 1);
    const double seconds = seconds_;
    absl::SleepFor(absl::Milliseconds(50));
    ASSERT_TRUE(clock_.Poll().ok());
    EXPECT_EQ(Measured().passes, round + 1);
    EXPECT_EQ(seconds_, seconds);
  }
}

TEST_P(WorkClockTest, CountsWhatIsOnItsWay) {
  EXPECT_EQ(clock_.seconds_in_flight(), 0);
  EXPECT_EQ(clock_.free(), WorkClock::kMaxInFlight);
  clock_.Begin();
  ASSERT_TRUE(clock_.Enqueued(kPass).ok());
  ASSERT_TRUE(clock_.Enqueued(kPass).ok());
  EXPECT_EQ(clock_.free(), WorkClock::kMaxInFlight - 2);
  EXPECT_DOUBLE_EQ(clock_.seconds_in_flight(), 2 * costs_.Seconds(kPass));
  ASSERT_TRUE(backend_->stream->Synchronize().ok());
  ASSERT_TRUE(clock_.Poll().ok());
  EXPECT_EQ(clock_.seconds_in_flight(), 0);
  for (size_t i = 0; i < 3 * WorkClock::kMaxInFlight; ++i) {
    clock_.Begin();
    ASSERT_TRUE(clock_.Enqueued(kPass).ok());
    if (i % 8 == 7) clock_.Synchronized({});
  }
  EXPECT_EQ(clock_.free(), WorkClock::kMaxInFlight);
}

INSTANTIATE_TEST_SUITE_P(Backends, WorkClockTest,
                         testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

}  // namespace
}  // namespace retroinfer
