// Against the real store in this process; tests/kv_store_service/server/store_process_test.cc has
// the tests with kill -9.
#include "gpu_worker/store_link/store_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/status/error_reason.h"
#include "tests/gpu_worker/store_link/in_process_store.h"

namespace retroinfer {
namespace {

class StoreLinkTest : public testing::Test {
 protected:
  StoreLinkOptions Options() const {
    StoreLinkOptions options;
    options.target = store_.target();
    options.geometry = kvstore::kTinyGeometry;
    options.model_fingerprint = "model";
    options.num_slots = 16;
    options.log_capacity = 64;
    options.request_capacity = 64;
    options.reserve_timeout = absl::Milliseconds(500);
    return options;
  }
  void Connect() {
    auto link = StoreLink::Connect(Options());
    ASSERT_TRUE(link.ok()) << link.status();
    link_ = *std::move(link);
  }
  absl::StatusOr<std::vector<Extent>> Reserve(uint64_t sequence, std::vector<uint32_t> tokens) {
    absl::Notification done;
    absl::StatusOr<std::vector<Extent>> result;
    link_->Reserve(ReserveRequest::Unnamed(sequence, tokens),
                   [&](absl::StatusOr<std::vector<Extent>> extents) {
                     result = std::move(extents);
                     done.Notify();
                   });
    done.WaitForNotification();
    return result;
  }
  void WaitUntilIdle() {
    while (link_->num_pending() > 0) absl::SleepFor(absl::Milliseconds(2));
  }
  void WaitFor(StoreLink::State state) {
    while (link_->state() != state) absl::SleepFor(absl::Milliseconds(2));
  }

  InProcessStore store_;
  std::unique_ptr<StoreLink> link_;
};

TEST_F(StoreLinkTest, MapsTheMemory) {
  Connect();
  EXPECT_EQ(link_->state(), StoreLink::State::kAttached);
  EXPECT_EQ(link_->arena_pages(), InProcessStore::kArenaBytes / kPageBytes);
  link_->arena().back() = std::byte{1};
  EXPECT_EQ(link_->data_plane().log().capacity(), 64u);
}

TEST_F(StoreLinkTest, CallbacksComeInOrderOnOneThreadAndMayCallTheLink) {
  Connect();
  std::vector<uint64_t> order;  // only touched on the control thread until `done`
  absl::Notification done;
  for (uint64_t sequence = 1; sequence <= 5; ++sequence) {
    link_->Reserve(ReserveRequest::Unnamed(sequence, {1024}),
                   [&, sequence](absl::StatusOr<std::vector<Extent>> extents) {
                     EXPECT_TRUE(extents.ok()) << extents.status();
                     order.push_back(sequence);
                     link_->Release(sequence);
                     if (sequence == 5) done.Notify();
                   });
  }
  done.WaitForNotification();
  WaitUntilIdle();
  EXPECT_THAT(order, testing::ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(store_.Stats().sequences(), 0u);
}

TEST_F(StoreLinkTest, ManyThreadsReserveAndReleaseWithoutALeak) {
  Connect();
  constexpr int kThreads = 4;
  constexpr int kRounds = 100;
  absl::BlockingCounter answered(kThreads * kRounds);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        const uint64_t sequence = 1 + t * kRounds + i;
        link_->Reserve(ReserveRequest::Unnamed(sequence, {1024, 1024}),
                       [&](absl::StatusOr<std::vector<Extent>>) { answered.DecrementCount(); });
        link_->Release(sequence);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  answered.Wait();
  WaitUntilIdle();
  const auto stats = store_.Stats();
  EXPECT_EQ(stats.free_pages(), stats.arena_pages());
}

TEST_F(StoreLinkTest, TellsWhyTheArenaHasNoRoom) {
  Connect();
  const auto refused = Reserve(1, std::vector<uint32_t>(50, 1024));
  ASSERT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(common::ReasonOf(refused.status()).reason, "ARENA_FULL");
  EXPECT_TRUE(Reserve(1, {1024}).ok());
}

TEST_F(StoreLinkTest, CommittingAnUnknownExtentIsNotFound) {
  Connect();
  absl::Notification done;
  link_->Commit(9, {{1, 4}}, [&](absl::Status status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    done.Notify();
  });
  done.WaitForNotification();
}

TEST_F(StoreLinkTest, WithoutAStoreReservationsFailInTimeAndReleasesWait) {
  Connect();
  ASSERT_TRUE(Reserve(1, {1024}).ok());
  store_.Stop();
  WaitFor(StoreLink::State::kLost);
  const absl::Time begin = absl::Now();
  EXPECT_EQ(Reserve(2, {1024}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(490));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(2));
  link_->Release(1);
  EXPECT_EQ(link_->num_pending(), 1u);

  std::atomic<int> reattached{0};
  link_->SetReattachCallback([&] { ++reattached; });
  store_.Start();
  WaitUntilIdle();
  EXPECT_EQ(reattached, 1);
  EXPECT_EQ(link_->num_reattached(), 1u);
  EXPECT_EQ(store_.Stats().sequences(), 0u);
  EXPECT_TRUE(Reserve(3, {1024}).ok());
}

TEST_F(StoreLinkTest, AReservationSurvivesAQuickRestart) {
  Connect();
  store_.Stop();
  absl::Notification done;
  link_->Reserve(
      ReserveRequest::Unnamed(1, {1024}), [&](absl::StatusOr<std::vector<Extent>> extents) {
        EXPECT_TRUE(extents.ok() || absl::IsUnavailable(extents.status())) << extents.status();
        done.Notify();
      });
  store_.Start();
  done.WaitForNotification();
  WaitUntilIdle();
  link_->Release(1);
  WaitUntilIdle();
  WaitFor(StoreLink::State::kAttached);
  EXPECT_EQ(store_.Stats().sequences(), 0u);
}

TEST_F(StoreLinkTest, TheEndCancelsWhatWaitsAndFreesEverything) {
  Connect();
  ASSERT_TRUE(Reserve(1, {1024}).ok());
  store_.Stop();
  WaitFor(StoreLink::State::kLost);
  std::atomic<bool> cancelled{false};
  link_->Commit(1, {{1, 4}}, [&](absl::Status status) { cancelled = absl::IsCancelled(status); });
  link_.reset();
  EXPECT_TRUE(cancelled);
  store_.Start();
  Connect();
  EXPECT_EQ(store_.Stats().sequences(), 0u);
  ASSERT_TRUE(Reserve(1, {1024}).ok());
  link_.reset();
  EXPECT_FALSE(store_.Stats().worker_attached());
  EXPECT_EQ(store_.Stats().sequences(), 0u);
}

TEST(StoreLinkConnectTest, SaysWhatWasTried) {
  StoreLinkOptions options;
  options.target = "unix:/tmp/no_such_folder_of_retroinfer/kv_store.sock";
  options.geometry = kvstore::kTinyGeometry;
  options.model_fingerprint = "model";
  options.attach_timeout = absl::Milliseconds(200);
  const auto link = StoreLink::Connect(options);
  ASSERT_EQ(link.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(link.status().message()), testing::HasSubstr(options.target));
}

}  // namespace
}  // namespace retroinfer
