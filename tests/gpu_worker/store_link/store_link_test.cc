// Against the real store in this process; tests/kv_store_service/server/store_process_test.cc has
// the tests with kill -9.
#include "gpu_worker/store_link/store_link.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/shm/sealed_memory.h"
#include "common/status/error_reason.h"
#include "tests/gpu_worker/store_link/in_process_store.h"
#include "tests/kv_store_service/named_chain.h"

namespace retroinfer {
namespace {

// Where a test waits until a time is over. On a busy machine an answer may take seconds.
constexpr absl::Duration kShortTimeout = absl::Seconds(3);
constexpr absl::Duration kNobodyComes = absl::Milliseconds(500);  // that a new store waits for
// Less than a step of attaching may take.
constexpr absl::Duration kFarMoreThanTheTimeout = absl::Seconds(20);

class StoreLinkTest : public testing::Test {
 protected:
  StoreLinkOptions Options() {
    StoreLinkOptions options;
    options.target = store_.target();
    options.geometry = kvstore::kTinyGeometry;
    options.model_fingerprint = "model";
    options.num_slots = 16;
    options.log_capacity = 64;
    options.request_capacity = 64;
    options.reserve_timeout = absl::Minutes(1);
    options.on_memory_taken = [this] { memory_taken_.Notify(); };
    return options;
  }
  void Connect() { Connect(Options()); }
  void Connect(const StoreLinkOptions& options) {
    auto link = StoreLink::Connect(options);
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
  absl::Notification memory_taken_;
  std::unique_ptr<StoreLink> link_;
};

TEST_F(StoreLinkTest, MapsTheMemory) {
  Connect();
  EXPECT_EQ(link_->state(), StoreLink::State::kAttached);
  EXPECT_EQ(link_->arena_pages(), InProcessStore::kArenaBytes / kPageBytes);
  link_->arena().back() = std::byte{1};
  EXPECT_EQ(link_->data_plane().log().capacity(), 64u);
}

// What the process of a rank maps of descriptors that it was given.
common::SealedMemory MapAsRank(int fd) {
  return *common::SealedMemory::Adopt(common::UniqueFd(::dup(fd)), 1 << 30);
}

TEST_F(StoreLinkTest, HasAPlaneForEachRankAndKeepsThemOverARestart) {
  StoreLinkOptions options = Options();
  options.num_planes = 3;
  Connect(options);
  link_->arena()[5] = std::byte{7};
  const common::SealedMemory arena = MapAsRank(link_->arena_fd());
  EXPECT_EQ(arena.bytes()[5], std::byte{7});
  EXPECT_EQ(arena.bytes().size(), link_->arena().size());
  std::vector<common::SealedMemory> memory;
  std::vector<DataPlane> planes;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    memory.push_back(MapAsRank(link_->plane_fd(rank)));
    planes.push_back(*DataPlane::Open(memory.back().bytes()));
    // Each rank writes through a mapping of its own, and the link sees it.
    planes[rank].worker_step() = 10 + rank;
    EXPECT_EQ(link_->data_plane(rank).worker_step(), 10 + rank);
    ASSERT_TRUE(planes[rank].log().TryPush({uint32_t(LogKind::kAdmit), 4, rank, 1}));
  }
  const auto wait_for_slots = [this] {
    while (true) {
      const auto stats = store_.Stats();
      if (stats.data_planes_size() == 3 && stats.data_planes(0).used_slots() == 1 &&
          stats.data_planes(1).used_slots() == 1 && stats.data_planes(2).used_slots() == 1) {
        return stats;
      }
      absl::SleepFor(absl::Milliseconds(2));
    }
  };
  auto stats = wait_for_slots();
  EXPECT_EQ(stats.num_slots(), 3 * options.num_slots);
  EXPECT_EQ(stats.used_slots(), 3u);
  ASSERT_TRUE(Reserve(1, {1024}).ok());
  store_.Stop();
  WaitFor(StoreLink::State::kLost);
  absl::Notification reattached;
  link_->SetReattachCallback([&] { reattached.Notify(); });
  store_.Start();
  reattached.WaitForNotification();
  for (DataPlane& plane : planes) {
    ASSERT_TRUE(plane.log().TryPush({uint32_t(LogKind::kReset), 0, 0, 2}));
    ASSERT_TRUE(plane.log().TryPush({uint32_t(LogKind::kAdmit), 9, 2, 2}));
  }
  stats = wait_for_slots();
  EXPECT_EQ(stats.sequences(), 1u);
  for (const auto& plane : stats.data_planes()) EXPECT_EQ(plane.log_entries_refused(), 0u);
  link_->SetReattachCallback(nullptr);
}

TEST_F(StoreLinkTest, AskingForTooManyPlanesIsRefused) {
  StoreLinkOptions options = Options();
  options.num_planes = 17;
  EXPECT_EQ(StoreLink::Connect(options).status().code(), absl::StatusCode::kInvalidArgument);
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

class NamedSegmentsTest : public StoreLinkTest {
 protected:
  struct Answer {
    absl::Notification done;
    absl::StatusOr<std::vector<Extent>> extents;
  };
  std::shared_ptr<Answer> Start(ReserveRequest request) {
    auto answer = std::make_shared<Answer>();
    link_->Reserve(std::move(request), [answer](absl::StatusOr<std::vector<Extent>> extents) {
      answer->extents = std::move(extents);
      answer->done.Notify();
    });
    return answer;
  }
  std::vector<Extent> Wait(Answer& answer) {
    answer.done.WaitForNotification();
    return answer.extents.value();  // or ends the test with the status
  }
  void WriteAndCommit(uint64_t sequence, const Extent& extent, uint64_t token_begin,
                      const SegmentIdentity& identity) {
    kvstore::WriteSegment(link_->arena().subspan(size_t{extent.first_page} * kPageBytes,
                                                 size_t{extent.num_pages} * kPageBytes),
                          kvstore::kTinyGeometry, token_begin, extent.num_tokens);
    link_->Commit(sequence, {{extent.id, token_begin, identity}},
                  [](const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; });
  }
  // Computes a chain and releases it.
  void Run(uint64_t sequence, const std::vector<SegmentIdentity>& chain) {
    const auto extents = Wait(*Start(kvstore::NamedRequest(sequence, chain)));
    for (size_t i = 0; i < extents.size(); ++i) {
      if (!extents[i].cached) WriteAndCommit(sequence, extents[i], 4 + 1024 * i, chain[i]);
    }
    link_->Release(sequence);
    WaitUntilIdle();
  }
  const std::vector<SegmentIdentity> chain_ = kvstore::NamedChain({1, 2});
};

TEST_F(NamedSegmentsTest, AReleasedPrefixIsCached) {
  Connect();
  Run(1, chain_);
  const auto extents = Wait(*Start(kvstore::NamedRequest(2, chain_, 1)));
  ASSERT_EQ(extents.size(), 3u);
  EXPECT_TRUE(extents[0].cached && extents[1].cached && !extents[2].cached);
  ReserveRequest look = kvstore::NamedRequest(3, kvstore::NamedChain({1, 3}));
  look.cached_only = true;
  EXPECT_EQ(Wait(*Start(look)).size(), 1u);
  const auto stats = store_.Stats();
  EXPECT_EQ(stats.prefix_cache_hits_tokens_total(), 3 * 1024u);
  EXPECT_EQ(stats.prefix_cache_queries_tokens_total(), 6 * 1024u);
  EXPECT_EQ(stats.named_segments(), 2u);
}

TEST_F(NamedSegmentsTest, TheSecondWaitsForTheFirstAndOthersDoNot) {
  StoreLinkOptions options = Options();
  options.reserve_timeout = kShortTimeout;
  Connect(options);
  const auto first = Wait(*Start(kvstore::NamedRequest(1, chain_)));
  auto second = Start(kvstore::NamedRequest(2, chain_));
  EXPECT_TRUE(Reserve(3, {1024}).ok());
  link_->Release(3);
  WriteAndCommit(1, first[0], 4, chain_[0]);
  absl::SleepFor(kShortTimeout + absl::Milliseconds(500));
  EXPECT_FALSE(second->done.HasBeenNotified());
  EXPECT_EQ(link_->num_pending(), 1u);
  WriteAndCommit(1, first[1], 1028, chain_[1]);
  const auto extents = Wait(*second);
  ASSERT_EQ(extents.size(), 2u);
  EXPECT_TRUE(extents[0].cached && extents[1].cached);
}

TEST_F(NamedSegmentsTest, TheWaitEndsWithTheFirstSequenceOrWithItsOwn) {
  Connect();
  Wait(*Start(kvstore::NamedRequest(1, chain_)));
  auto second = Start(kvstore::NamedRequest(2, chain_));
  auto third = Start(kvstore::NamedRequest(3, chain_));
  link_->Release(3);
  third->done.WaitForNotification();
  EXPECT_TRUE(absl::IsCancelled(third->extents.status())) << third->extents.status();
  EXPECT_FALSE(second->done.HasBeenNotified());
  link_->Release(1);
  EXPECT_FALSE(Wait(*second)[0].cached);
}

TEST_F(NamedSegmentsTest, TheWaitIsBounded) {
  StoreLinkOptions options = Options();
  options.progress_timeout = absl::Milliseconds(100);
  Connect(options);
  Wait(*Start(kvstore::NamedRequest(1, chain_)));
  const absl::Time begin = absl::Now();
  EXPECT_FALSE(Wait(*Start(kvstore::NamedRequest(2, chain_)))[0].cached);
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(99));
  EXPECT_LT(absl::Now() - begin, kFarMoreThanTheTimeout);
}

// Of what is written to the disk nothing is refused that fits a moment later.
TEST_F(NamedSegmentsTest, RoomThatWritesKeepIsWaitedFor) {
  const kvstore::TemporaryFolder disk;
  InProcessStore store(disk.path());
  StoreLinkOptions options = Options();
  options.target = store.target();
  options.disk_timeout = absl::ZeroDuration();  // of what is read
  Connect(options);
  const uint32_t pages = SegmentLayout(kvstore::kTinyGeometry, 1024).max_pages;
  const std::vector<uint32_t> all(link_->arena_pages() / pages, 1024);
  for (int32_t round = 0; round < 10; ++round) {
    const auto sequence = static_cast<uint64_t>(1 + 2 * round);
    const auto chain = kvstore::NamedChain({3 * round + 1, 3 * round + 2, 3 * round + 3});
    const auto extents = Wait(*Start(kvstore::NamedRequest(sequence, chain)));
    for (size_t i = 0; i < chain.size(); ++i) {
      WriteAndCommit(sequence, extents[i], 4 + 1024 * i, chain[i]);
    }
    link_->Release(sequence);
    const auto granted = Reserve(sequence + 1, all);
    ASSERT_TRUE(granted.ok()) << granted.status();
    link_->Release(sequence + 1);
  }
  link_.reset();
}

TEST_F(NamedSegmentsTest, ARestartedStoreLearnsTheNames) {
  Connect();
  Run(1, chain_);
  const auto other = kvstore::NamedChain({7});
  Run(2, other);
  const auto live = Wait(*Start(kvstore::NamedRequest(3, chain_)));
  auto waiting_chain = kvstore::NamedChain({9});
  Wait(*Start(kvstore::NamedRequest(4, waiting_chain)));
  auto waiting = Start(kvstore::NamedRequest(5, waiting_chain));
  store_.Stop();
  WaitFor(StoreLink::State::kLost);
  store_.Start();
  WaitFor(StoreLink::State::kAttached);
  // The new store does not know that sequence 4 works on it.
  EXPECT_FALSE(Wait(*waiting)[0].cached);
  EXPECT_EQ(store_.Stats().named_segments(), 3u);
  EXPECT_EQ(store_.Stats().sequences(), 3u);
  EXPECT_TRUE(Wait(*Start(kvstore::NamedRequest(6, other)))[0].cached);
  const auto shared = Wait(*Start(kvstore::NamedRequest(7, chain_)));
  EXPECT_EQ(shared[1].id, live[1].id);
  for (uint64_t sequence = 3; sequence <= 7; ++sequence) link_->Release(sequence);
  WaitUntilIdle();
  const auto stats = store_.Stats();
  EXPECT_EQ(stats.free_pages() + stats.unreferenced_pages(), stats.arena_pages());
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
  StoreLinkOptions options = Options();
  options.reserve_timeout = kShortTimeout;
  Connect(options);
  ASSERT_TRUE(Reserve(1, {1024}).ok());
  store_.Stop();
  WaitFor(StoreLink::State::kLost);
  const absl::Time begin = absl::Now();
  EXPECT_EQ(Reserve(2, {1024}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_GE(absl::Now() - begin, kShortTimeout - absl::Milliseconds(10));
  EXPECT_LT(absl::Now() - begin, kFarMoreThanTheTimeout);
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

TEST_F(StoreLinkTest, AnArenaThatIsAnotherWorkersEndsEverything) {
  Connect();
  EXPECT_FALSE(link_->memory_taken());
  store_.Stop();
  WaitFor(StoreLink::State::kLost);
  absl::Status commit;
  absl::Notification done;
  link_->Commit(1, {{1, 4}}, [&](absl::Status status) {
    commit = std::move(status);
    done.Notify();
  });
  link_->data_plane().arena_taken() = 1;  // as the store does
  EXPECT_TRUE(link_->memory_taken());
  memory_taken_.WaitForNotification();
  done.WaitForNotification();
  EXPECT_TRUE(absl::IsUnavailable(commit) || absl::IsNotFound(commit)) << commit;
  EXPECT_TRUE(absl::IsUnavailable(Reserve(2, {1024}).status()));
  store_.Start(kNobodyComes);
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_EQ(link_->state(), StoreLink::State::kLost);
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
  store_.Start(kNobodyComes);
  Connect();
  EXPECT_EQ(store_.Stats().sequences(), 0u);
  ASSERT_TRUE(Reserve(1, {1024}).ok());
  link_.reset();
  EXPECT_FALSE(store_.Stats().worker_attached());
  EXPECT_EQ(store_.Stats().sequences(), 0u);
}

// A store to which a worker can hand its memory back, and that never answers.
class SilentStore final : public kvstore::v1::KvStoreService::Service {
 public:
  explicit SilentStore(const std::string& target) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(target, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~SilentStore() override { server_->Shutdown(absl::ToChronoTime(absl::Now())); }

  grpc::Status AttachWorker(grpc::ServerContext* context,
                            const kvstore::v1::AttachWorkerRequest* /*request*/,
                            kvstore::v1::AttachWorkerResponse* /*response*/) override {
    const bool is_first = num_calls_++ == 0;
    if (is_first) asked_.Notify();
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(2));
    if (is_first) {
      given_up_early_ = absl::Now() < absl::FromChrono(context->deadline());
      ended_.Notify();
    }
    return grpc::Status::CANCELLED;
  }

  void AwaitCall() { asked_.WaitForNotification(); }
  // Waits for the call's end. Returns whether the client has ended it before its deadline did.
  bool WasGivenUp() {
    ended_.WaitForNotification();
    return given_up_early_;
  }

 private:
  std::atomic<int> num_calls_{0};
  std::atomic<bool> given_up_early_{false};
  absl::Notification asked_;
  absl::Notification ended_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(StoreLinkTest, EndsWhileAReattachIsUnanswered) {
  Connect();
  std::atomic<int> reattached{0};
  link_->SetReattachCallback([&] { ++reattached; });
  store_.Stop();
  SilentStore silent(store_.target());
  silent.AwaitCall();
  link_.reset();
  EXPECT_TRUE(silent.WasGivenUp());
  EXPECT_EQ(reattached, 0);
}

// An engine that ends takes its callback back, which may use the engine until then.
TEST_F(StoreLinkTest, ACallbackThatIsTakenBackHasEndedAndIsNotCalledAgain) {
  Connect();
  absl::Notification running, go_on, taken_back;
  std::atomic<bool> has_ended{false};
  std::atomic<int> reattached{0};
  link_->SetReattachCallback([&] {
    if (reattached++ > 0) return;
    running.Notify();
    go_on.WaitForNotification();
    has_ended = true;
  });
  store_.Stop();
  store_.Start();
  running.WaitForNotification();
  std::thread owner([&] {
    link_->SetReattachCallback(nullptr);
    EXPECT_TRUE(has_ended);
    taken_back.Notify();
  });
  EXPECT_FALSE(taken_back.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
  go_on.Notify();
  owner.join();

  store_.Stop();
  store_.Start();
  while (link_->num_reattached() < 2) absl::SleepFor(absl::Milliseconds(2));
  Reserve(1, {1024}).status().IgnoreError();  // by then it would have been called
  EXPECT_EQ(reattached, 1);
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
  const auto arena = StoreLink::AwaitArena(options.target, absl::Milliseconds(200));
  ASSERT_EQ(arena.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(arena.status().message()), testing::HasSubstr(options.target));
}

TEST_F(StoreLinkTest, TheArenasSizeIsKnownBeforeAttachingAndWaitsForTheStore) {
  EXPECT_EQ(*StoreLink::AwaitArena(store_.target(), absl::Seconds(10)),
            InProcessStore::kArenaBytes / kPageBytes);
  EXPECT_EQ(store_.Stats().workers_attached_total(), 0u);
  store_.Stop();
  absl::StatusOr<uint32_t> num_pages;
  std::thread waiting(
      [&] { num_pages = StoreLink::AwaitArena(store_.target(), absl::Seconds(20)); });
  absl::SleepFor(absl::Milliseconds(200));
  store_.Start();
  waiting.join();
  ASSERT_TRUE(num_pages.ok()) << num_pages.status();
  Connect();
  EXPECT_EQ(link_->arena_pages(), *num_pages);
}

}  // namespace
}  // namespace retroinfer
