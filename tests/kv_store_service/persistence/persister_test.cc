#include "kv_store_service/persistence/persister.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/kv_store_service/persistence/sample_segments.h"
#include "tests/support/storage/faulty_segment_storage.h"
#include "tests/support/storage/in_memory_segment_storage.h"

namespace retroinfer::kvstore {
namespace {

using testing::At;
using testing::CheckSample;
using testing::MakeSample;
using testing::Sample;

class PersisterTest : public ::testing::Test {
 protected:
  PersisterOptions Options(PersistMode mode) {
    PersisterOptions options;
    options.mode = mode;
    options.now = [this] { return At(now_.load()); };
    return options;
  }

  PersistRequest Request(const Sample& sample) {
    PersistRequest request;
    request.record = sample.record;
    request.token_ids = sample.token_ids;
    request.image = sample.image;
    request.done = [this](absl::Status status) {
      absl::MutexLock lock(&mutex_);
      ++results_[status.code()];
    };
    return request;
  }

  int Results(absl::StatusCode code) {
    absl::MutexLock lock(&mutex_);
    return results_[code];
  }

  std::atomic<int64_t> now_{0};
  std::unique_ptr<SegmentStorage> inner_ = MakeInMemorySegmentStorage();
  FaultySegmentStorage storage_{inner_.get()};
  absl::Mutex mutex_;
  std::map<absl::StatusCode, int> results_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(PersisterTest, WritesThrough) {
  std::vector<Sample> samples;
  for (int i = 0; i < 20; ++i) samples.push_back(MakeSample(i));
  Persister persister(Options(PersistMode::kWriteThrough), &storage_, nullptr);
  for (const Sample& sample : samples) persister.Offer(Request(sample));
  ASSERT_TRUE(persister.Drain(absl::Seconds(30)));
  EXPECT_EQ(Results(absl::StatusCode::kOk), 20);
  for (const Sample& sample : samples) EXPECT_TRUE(CheckSample(storage_, sample).ok());
  const Persister::Stats stats = persister.stats();
  EXPECT_EQ(stats.persisted_total, 20u);
  EXPECT_EQ(stats.persisted_bytes_total, 100'000u);
  EXPECT_EQ(stats.queued + stats.queued_bytes, 0u);
}

TEST_F(PersisterTest, TheModeDecides) {
  const Sample sample = MakeSample(1);
  {
    Persister off(Options(PersistMode::kOff), &storage_, nullptr);
    off.Offer(Request(sample));
    off.Persist(Request(sample));
    EXPECT_EQ(Results(absl::StatusCode::kFailedPrecondition), 2);
  }
  Persister on_demand(Options(PersistMode::kOnDemand), &storage_, nullptr);
  on_demand.Offer(Request(sample));
  EXPECT_EQ(Results(absl::StatusCode::kFailedPrecondition), 3);
  on_demand.Persist(Request(sample));
  ASSERT_TRUE(on_demand.Drain(absl::Seconds(30)));
  EXPECT_EQ(Results(absl::StatusCode::kOk), 1);
}

TEST_F(PersisterTest, AFullQueueRefusesAtOnce) {
  storage_.SetDelay(absl::Milliseconds(50));
  PersisterOptions options = Options(PersistMode::kWriteThrough);
  options.max_queued = 2;
  std::vector<Sample> samples;
  for (int i = 0; i < 10; ++i) samples.push_back(MakeSample(i));
  Persister persister(options, &storage_, nullptr);
  for (const Sample& sample : samples) persister.Offer(Request(sample));
  EXPECT_GE(Results(absl::StatusCode::kResourceExhausted), 7);
  ASSERT_TRUE(persister.Drain(absl::Seconds(30)));
  EXPECT_EQ(Results(absl::StatusCode::kResourceExhausted) + Results(absl::StatusCode::kOk), 10);
  EXPECT_GE(persister.stats().dropped_total, 7u);
}

TEST_F(PersisterTest, ItsEndTakesABoundedTime) {
  storage_.SetDelay(absl::Milliseconds(100));
  PersisterOptions options = Options(PersistMode::kWriteThrough);
  options.stop_timeout = absl::Milliseconds(250);
  std::vector<Sample> samples;
  for (int i = 0; i < 100; ++i) samples.push_back(MakeSample(i));
  const absl::Time begin = absl::Now();
  {
    Persister persister(options, &storage_, nullptr);
    for (const Sample& sample : samples) persister.Offer(Request(sample));
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(3));  // and not 10
  EXPECT_GE(Results(absl::StatusCode::kOk), 1);
  EXPECT_EQ(Results(absl::StatusCode::kOk) + Results(absl::StatusCode::kUnavailable), 100);
}

TEST_F(PersisterTest, ABrokenDiskDegradesAndComesBack) {
  for (DiskFault fault : {DiskFault::kNoSpace, DiskFault::kIoError}) {
    now_ += 1000;
    const Sample first = MakeSample(now_ + 1), second = MakeSample(now_ + 2);
    const int refused = Results(absl::StatusCode::kUnavailable);
    Persister persister(Options(PersistMode::kWriteThrough), &storage_, nullptr);
    storage_.FailWrites(fault, 2);
    persister.Offer(Request(first));
    ASSERT_TRUE(persister.Drain(absl::Seconds(30)));
    EXPECT_TRUE(persister.stats().degraded);
    EXPECT_EQ(persister.stats().failed_total, 1u);

    persister.Offer(Request(second));  // within the back-off: refused at once
    EXPECT_EQ(Results(absl::StatusCode::kUnavailable), refused + 1);
    now_ += 1;
    EXPECT_FALSE(persister.stats().degraded);
    persister.Offer(Request(second));  // fails: the back-off is two seconds now
    ASSERT_TRUE(persister.Drain(absl::Seconds(30)));
    now_ += 1;
    EXPECT_TRUE(persister.stats().degraded);
    now_ += 1;
    persister.Offer(Request(second));  // the disk is back
    ASSERT_TRUE(persister.Drain(absl::Seconds(30)));
    EXPECT_FALSE(persister.stats().degraded);
    EXPECT_TRUE(CheckSample(storage_, second).ok());
    EXPECT_EQ(persister.stats().persisted_total, 1u);
  }
}

TEST_F(PersisterTest, WhatTheLimitsRefuseDoesNotDegrade) {
  DiskBudget budget(&storage_, {.cap_bytes = 6000}, {});
  const Sample large = MakeSample(1, 7000), small = MakeSample(2, 4000), next = MakeSample(3, 4000);
  Persister persister(Options(PersistMode::kWriteThrough), &storage_, &budget);
  for (const Sample* sample : {&large, &small, &next}) persister.Offer(Request(*sample));
  ASSERT_TRUE(persister.Drain(absl::Seconds(30)));
  EXPECT_EQ(Results(absl::StatusCode::kFailedPrecondition), 1);
  EXPECT_EQ(persister.stats().no_room_total, 1u);
  EXPECT_FALSE(persister.stats().degraded);
  EXPECT_TRUE(absl::IsNotFound(CheckSample(storage_, small)));  // evicted for the next
  EXPECT_TRUE(CheckSample(storage_, next).ok());
}

TEST_F(PersisterTest, EndingWritesWhatIsQueued) {
  std::vector<Sample> samples;
  for (int i = 0; i < 5; ++i) samples.push_back(MakeSample(i));
  storage_.SetDelay(absl::Milliseconds(5));
  {
    Persister persister(Options(PersistMode::kWriteThrough), &storage_, nullptr);
    for (const Sample& sample : samples) persister.Offer(Request(sample));
  }
  EXPECT_EQ(Results(absl::StatusCode::kOk), 5);
}

TEST_F(PersisterTest, DoneMayOfferTheNext) {
  const Sample first = MakeSample(1), second = MakeSample(2);
  absl::Notification both;
  Persister persister(Options(PersistMode::kWriteThrough), &storage_, nullptr);
  PersistRequest request = Request(first);
  request.done = [&](absl::Status) {
    PersistRequest next = Request(second);
    next.done = [&](absl::Status) { both.Notify(); };
    persister.Offer(std::move(next));
  };
  persister.Offer(std::move(request));
  EXPECT_TRUE(both.WaitForNotificationWithTimeout(absl::Seconds(30)));
}

}  // namespace
}  // namespace retroinfer::kvstore
