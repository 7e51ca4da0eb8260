#include "gpu_worker/device/cpu/cpu_stream.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gpu_worker/device/cpu/cpu_device.h"

namespace retroinfer {
namespace {

class CpuStreamTest : public testing::Test {
 protected:
  CpuStream& Cpu(Stream& stream) { return static_cast<CpuStream&>(stream); }

  CpuDevice device_{{.num_threads = 2}};
  std::unique_ptr<Stream> compute_ = *device_.CreateStream(StreamKind::kCompute);
  std::unique_ptr<Stream> background_ = *device_.CreateStream(StreamKind::kBackground);
  std::unique_ptr<Event> event_ = *device_.CreateEvent();
};

TEST_F(CpuStreamTest, ComputeRunsAtOnceOnTheCaller) {
  std::thread::id where;
  ASSERT_TRUE(
      Cpu(*compute_).Launch([&where](ThreadPool&) { where = std::this_thread::get_id(); }).ok());
  EXPECT_EQ(where, std::this_thread::get_id());
}

TEST_F(CpuStreamTest, BackgroundRunsInOrderBesideTheCaller) {
  absl::Notification go;
  std::vector<int> order;
  ASSERT_TRUE(Cpu(*background_).Launch([&go](ThreadPool&) { go.WaitForNotification(); }).ok());
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(Cpu(*background_).Launch([&order, i](ThreadPool&) { order.push_back(i); }).ok());
  }
  go.Notify();
  ASSERT_TRUE(background_->Synchronize().ok());
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST_F(CpuStreamTest, WhatIsUrgentRunsInOrderAndWithoutLoweredPriority) {
  const auto niceness = [] { return ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid())); };
  const int own = niceness();
  absl::Notification go;
  std::vector<int> nice;
  const auto note = [&](ThreadPool&) { nice.push_back(niceness()); };
  ASSERT_TRUE(Cpu(*background_).Launch(note).ok());
  ASSERT_TRUE(Cpu(*background_).Launch([&go](ThreadPool&) { go.WaitForNotification(); }).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Cpu(*background_).Launch(note).ok());
  background_->SetUrgent(true);
  go.Notify();
  absl::Notification urgent_done;
  ASSERT_TRUE(Cpu(*background_).Launch([&](ThreadPool&) { urgent_done.Notify(); }).ok());
  urgent_done.WaitForNotification();
  background_->SetUrgent(false);
  absl::Notification done;
  ASSERT_TRUE(Cpu(*background_)
                  .Launch([&](ThreadPool& pool) {
                    note(pool);
                    done.Notify();
                  })
                  .ok());
  done.WaitForNotification();
  ASSERT_EQ(nice.size(), 5u);
  EXPECT_GT(nice.back(), std::min(own, 18));  // there is nothing behind 19
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(nice[i], own) << i;
}

TEST_F(CpuStreamTest, AnEventNeverRecordedIsDone) {
  EXPECT_TRUE(*device_.IsDone(*event_));
  EXPECT_TRUE(device_.Synchronize(*event_).ok());
  EXPECT_TRUE(compute_->Wait(*event_).ok());
}

TEST_F(CpuStreamTest, AnEventIsDoneWhenItsWorkIs) {
  absl::Notification go;
  std::atomic<bool> ran = false;
  ASSERT_TRUE(Cpu(*background_)
                  .Launch([&](ThreadPool&) {
                    go.WaitForNotification();
                    ran = true;
                  })
                  .ok());
  ASSERT_TRUE(background_->Record(*event_).ok());
  EXPECT_FALSE(*device_.IsDone(*event_));
  go.Notify();
  ASSERT_TRUE(device_.Synchronize(*event_).ok());
  EXPECT_TRUE(ran);
  EXPECT_TRUE(*device_.IsDone(*event_));
}

TEST_F(CpuStreamTest, StreamsWaitForEachOther) {
  const auto second = *device_.CreateEvent();
  int value = 0;  // unsynchronised but for the events
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(Cpu(*compute_).Launch([&value](ThreadPool&) { ++value; }).ok());
    ASSERT_TRUE(compute_->Record(*event_).ok());
    ASSERT_TRUE(background_->Wait(*event_).ok());
    ASSERT_TRUE(Cpu(*background_).Launch([&value](ThreadPool&) { value *= 2; }).ok());
    ASSERT_TRUE(background_->Record(*second).ok());
    ASSERT_TRUE(compute_->Wait(*second).ok());
    ASSERT_TRUE(Cpu(*compute_).Launch([&value](ThreadPool&) { value %= 1000; }).ok());
  }
  int want = 0;
  for (int i = 0; i < 50; ++i) want = (want + 1) * 2 % 1000;
  EXPECT_EQ(value, want);
}

TEST_F(CpuStreamTest, AnEventMayGoBeforeTheWorkThatRefersToIt) {
  absl::Notification go;
  ASSERT_TRUE(Cpu(*background_).Launch([&go](ThreadPool&) { go.WaitForNotification(); }).ok());
  ASSERT_TRUE(background_->Record(*event_).ok());
  ASSERT_TRUE(background_->Wait(*event_).ok());
  event_.reset();
  go.Notify();
  EXPECT_TRUE(background_->Synchronize().ok());
}

TEST_F(CpuStreamTest, DestructionFinishesTheQueue) {
  std::atomic<int> count = 0;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(Cpu(*background_).Launch([&count](ThreadPool&) { ++count; }).ok());
  }
  background_.reset();
  EXPECT_EQ(count, 20);
}

TEST_F(CpuStreamTest, BothStreamsShareLoopsAtTheSameTime) {
  std::atomic<int64_t> background_sum = 0;
  ASSERT_TRUE(Cpu(*background_)
                  .Launch([&](ThreadPool& pool) {
                    for (int round = 0; round < 200; ++round) {
                      pool.ParallelFor(10, [&](int64_t i) { background_sum += i; });
                    }
                  })
                  .ok());
  std::atomic<int64_t> sum = 0;
  for (int round = 0; round < 200; ++round) {
    ASSERT_TRUE(
        Cpu(*compute_)
            .Launch([&](ThreadPool& pool) { pool.ParallelFor(10, [&](int64_t i) { sum += i; }); })
            .ok());
  }
  ASSERT_TRUE(background_->Synchronize().ok());
  EXPECT_EQ(sum, 200 * 45);
  EXPECT_EQ(background_sum, 200 * 45);
}

}  // namespace
}  // namespace retroinfer
