// The real program with workers that are killed, stopped, doubled and talk garbage.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <regex>
#include <sstream>

#include "build_paths.h"
#include "common/rpc/liveness.h"
#include "common/shm/descriptor_protocol.h"
#include "common/shm/fd_channel.h"
#include "tests/kv_store_service/random_seed.h"
#include "tests/kv_store_service/server/store_process_fixture.h"

namespace retroinfer::kvstore {
namespace {

using testing::HasSubstr;

TEST_F(StoreProcessTest, AWorkerReservesCommitsAndReleases) {
  StartStore();
  auto link = StoreLink::Connect(LinkOptions());
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_EQ((*link)->arena_pages(), 8192u);
  EXPECT_EQ((*link)->data_plane().num_slots(), 100u);

  const auto extents = Reserve(**link, 7, {1024, 1024});
  ASSERT_TRUE(extents.ok()) << extents.status();
  ASSERT_EQ(extents->size(), 2u);
  const SegmentLayout layout(kTinyGeometry, 1024);
  EXPECT_EQ((*extents)[0].num_pages, layout.max_pages);
  EXPECT_EQ(Stats().free_pages(), 8192 - 2 * layout.max_pages);
  EXPECT_EQ(Stats().reserved_extents(), 2u);

  const uint32_t used = WriteSegment(BytesOf(**link, (*extents)[1]), kTinyGeometry, 1028, 1024);
  ASSERT_LT(used, layout.max_pages);
  ASSERT_TRUE(Commit(**link, 7, {{(*extents)[1].id, 1028}}).ok());
  v1::GetStatsResponse stats = Stats();
  EXPECT_EQ(stats.committed_segments(), 1u);
  EXPECT_EQ(stats.reserved_extents(), 1u);
  EXPECT_EQ(stats.clusters(), 256u);
  EXPECT_EQ(stats.free_pages(), 8192 - layout.max_pages - used);

  // The first extent holds garbage.
  const absl::Status refused = Commit(**link, 7, {{(*extents)[0].id, 4}});
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_EQ(Stats().segments_refused_total(), 1u);

  (*link)->Release(7);
  EXPECT_TRUE(Eventually([&] { return Stats().sequences() == 0; }));
  stats = Stats();
  EXPECT_EQ(stats.free_pages(), 8192u);
  EXPECT_EQ(stats.clusters(), 0u);
  EXPECT_EQ(stats.committed_segments() + stats.reserved_extents(), 0u);
  EXPECT_EQ((*link)->num_pending(), 0u);
}

TEST_F(StoreProcessTest, AFullArenaIsRefusedWithTheNumbers) {
  StartStore();
  auto link = StoreLink::Connect(LinkOptions());
  ASSERT_TRUE(link.ok()) << link.status();
  const auto extents = Reserve(**link, 1, std::vector<uint32_t>(100, 1024));
  ASSERT_EQ(extents.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(extents.status().message()), HasSubstr("8192 of 8192 pages are free"));
  EXPECT_EQ(Stats().free_pages(), 8192u);
}

TEST_F(StoreProcessTest, ASecondWorkerIsRefusedAndTheFirstIsNotDisturbed) {
  StartStore();
  auto link = StoreLink::Connect(LinkOptions());
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_EQ(StoreLink::Connect(LinkOptions()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Reserve(**link, 1, {1024}).ok());
  link->reset();
  auto next = StoreLink::Connect(LinkOptions());
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(Stats().free_pages(), 8192u);
}

TEST_F(StoreProcessTest, AWorkerWithABadGeometryIsRefused) {
  StartStore();
  StoreLinkOptions options = LinkOptions();
  options.geometry.head_dim = 80;
  EXPECT_EQ(StoreLink::Connect(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = LinkOptions();
  options.geometry = {1024, 1024, 128, kF32Kv};
  EXPECT_EQ(StoreLink::Connect(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = LinkOptions();
  options.log_capacity = 100;
  EXPECT_EQ(StoreLink::Connect(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = LinkOptions();
  options.model_fingerprint.clear();
  EXPECT_EQ(StoreLink::Connect(options).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(Stats().worker_attached());
}

TEST_F(StoreProcessTest, ASegmentOfAnotherGeometryIsRefused) {
  StartStore();
  auto link = StoreLink::Connect(LinkOptions());
  ASSERT_TRUE(link.ok()) << link.status();
  const auto extents = Reserve(**link, 1, {1024});
  ASSERT_TRUE(extents.ok());
  KvGeometry other = kTinyGeometry;
  other.num_layers = 1;
  WriteSegment(BytesOf(**link, extents->front()), other, 4, 1024);
  const absl::Status status = Commit(**link, 1, {{extents->front().id, 4}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("num_layers is 1, needs 2"));
}

TEST_F(StoreProcessTest, AKilledWorkerLeavesNothingBehind) {
  StartStore();
  ChildProcess worker({absl::StrCat(RETROINFER_BINARY_DIR, "/bin/store_fake_worker"), target()},
                      log_path_);
  ASSERT_TRUE(Eventually([&] { return worker.Log().find("ready") != std::string::npos; }));
  EXPECT_EQ(Stats().sequences(), 2u);
  EXPECT_EQ(Stats().worker_pid(), worker.pid());
  const absl::Time killed = absl::Now();
  worker.Kill();
  ASSERT_TRUE(Eventually([&] { return !Stats().worker_attached(); }));
  EXPECT_LT(absl::Now() - killed, absl::Seconds(2));
  // What it may have been writing to is free once its process is gone, which is a moment later.
  EXPECT_TRUE(Eventually([&] { return Stats().free_pages() == 8192; }));
  const v1::GetStatsResponse stats = Stats();
  EXPECT_EQ(
      stats.sequences() + stats.reserved_extents() + stats.committed_segments() + stats.clusters(),
      0u);
  EXPECT_TRUE(StoreLink::Connect(LinkOptions()).ok());
}

TEST_F(StoreProcessTest, AKilledStoreGetsItsMemoryBackFromTheWorker) {
  StartStore();
  auto link = StoreLink::Connect(LinkOptions());
  ASSERT_TRUE(link.ok()) << link.status();
  std::atomic<int> reattached{0};
  (*link)->SetReattachCallback([&] { ++reattached; });
  const auto extents = Reserve(**link, 1, {1024, 1024});
  ASSERT_TRUE(extents.ok());
  const uint32_t used = WriteSegment(BytesOf(**link, (*extents)[0]), kTinyGeometry, 4, 1024);
  ASSERT_TRUE(Commit(**link, 1, {{(*extents)[0].id, 4}}).ok());
  ASSERT_TRUE(Reserve(**link, 2, {1024}).ok());
  const std::byte* arena = (*link)->arena().data();

  store_->Kill();
  ASSERT_TRUE(Eventually([&] { return (*link)->state() == StoreLink::State::kLost; }));
  // While the store is away: a commit and a release wait, the memory stays.
  WriteSegment(BytesOf(**link, (*extents)[1]), kTinyGeometry, 1028, 1024);
  std::atomic<bool> committed{false};
  (*link)->Commit(1, {{(*extents)[1].id, 1028}},
                  [&](absl::Status status) { committed = status.ok(); });
  (*link)->Release(2);
  EXPECT_EQ((*link)->num_pending(), 2u);

  StartStore();
  ASSERT_TRUE(Eventually([&] { return (*link)->num_pending() == 0; }));
  EXPECT_TRUE(committed);
  EXPECT_EQ(reattached, 1);
  EXPECT_EQ((*link)->num_reattached(), 1u);
  EXPECT_EQ((*link)->state(), StoreLink::State::kAttached);
  EXPECT_EQ((*link)->arena().data(), arena);
  const v1::GetStatsResponse stats = Stats();
  EXPECT_EQ(stats.memory_adoptions_total(), 1u);
  EXPECT_EQ(stats.sequences(), 1u);
  EXPECT_EQ(stats.committed_segments(), 2u);
  EXPECT_EQ(stats.free_pages(), 8192 - 2 * used);

  // The new store replays the log from a reset on.
  auto& log = (*link)->data_plane().log();
  ASSERT_TRUE(log.TryPush({uint32_t(LogKind::kAdmit), 1, 1, 0}));  // before the reset: ignored
  ASSERT_TRUE(log.TryPush({uint32_t(LogKind::kReset), 0, 0, 0}));
  ASSERT_TRUE(log.TryPush({uint32_t(LogKind::kAdmit), 5, 6, 0}));
  EXPECT_TRUE(Eventually([&] { return Stats().used_slots() == 1; }));
  EXPECT_EQ(Stats().log_entries_refused_total(), 0u);

  (*link)->Release(1);
  EXPECT_TRUE(Eventually([&] { return Stats().free_pages() == 8192; }));
}

// Reserves, commits and releases at random while the store is killed again and again. A committed
// segment is never lost, and at the end nothing is left.
TEST_F(StoreProcessTest, KillsAtRandomMomentsLoseAndLeakNothing) {
  std::mt19937_64 random(TestSeed());
  StartStore();
  StoreLinkOptions options = LinkOptions();
  options.reserve_timeout = absl::Milliseconds(200);
  auto link = StoreLink::Connect(options);
  ASSERT_TRUE(link.ok()) << link.status();
  std::map<uint64_t, Extent> live;  // sequence -> its extent, committed
  uint64_t sequence = 0;
  const uint64_t kills = 8;
  for (uint64_t kill = 0; kill < kills; ++kill) {
    const absl::Time end = absl::Now() + absl::Milliseconds(random() % 150);
    while (absl::Now() < end) {
      if (live.size() >= 4) {
        const auto victim = std::next(live.begin(), random() % live.size());
        (*link)->Release(victim->first);
        live.erase(victim);
        continue;
      }
      const auto extents = Reserve(**link, ++sequence, {1024});
      if (!extents.ok()) continue;
      WriteSegment(BytesOf(**link, extents->front()), kTinyGeometry, 4, 1024);
      ASSERT_TRUE(Commit(**link, sequence, {{extents->front().id, 4}}).ok());
      live[sequence] = extents->front();
    }
    // Some calls are on their way when it happens.
    (*link)->Reserve(ReserveRequest::Unnamed(++sequence, {1024}),
                     [](const absl::StatusOr<std::vector<Extent>>&) {});
    (*link)->Release(sequence);
    store_->Kill();
    StartStore();
    if (random() % 3 == 0) continue;  // the next kill may come before the hand-back
    ASSERT_TRUE(Eventually([&] { return (*link)->num_pending() == 0; }));
  }
  ASSERT_TRUE(Eventually([&] {
    return (*link)->num_pending() == 0 && (*link)->state() == StoreLink::State::kAttached;
  }));
  EXPECT_EQ(Stats().committed_segments(), live.size());
  EXPECT_EQ(Stats().reserved_extents(), 0u);
  EXPECT_GE((*link)->num_reattached(), 3u);
  for (const auto& [id, extent] : live) (*link)->Release(id);
  EXPECT_TRUE(Eventually([&] { return Stats().free_pages() == 8192; }));
}

TEST_F(StoreProcessTest, ReservationsFailInTimeWithoutAStoreAndWorkAgainWithOne) {
  StartStore();
  StoreLinkOptions options = LinkOptions();
  options.reserve_timeout = absl::Milliseconds(400);
  auto link = StoreLink::Connect(options);
  ASSERT_TRUE(link.ok()) << link.status();
  store_->Kill();
  const absl::Time begin = absl::Now();
  EXPECT_EQ(Reserve(**link, 1, {1024}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(2));
  StartStore();
  ASSERT_TRUE(Eventually([&] { return (*link)->state() == StoreLink::State::kAttached; }));
  EXPECT_TRUE(Reserve(**link, 1, {1024}).ok());
}

TEST_F(StoreProcessTest, AStoppedStoreFailsReservationsAndGrantsNoneBehindTheWorkersBack) {
  StartStore();
  StoreLinkOptions options = LinkOptions();
  options.reserve_timeout = absl::Milliseconds(300);
  auto link = StoreLink::Connect(options);
  ASSERT_TRUE(link.ok()) << link.status();
  store_->Stop();
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) {
    EXPECT_EQ(Reserve(**link, sequence, {1024}).status().code(), absl::StatusCode::kUnavailable);
  }
  store_->Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return (*link)->num_pending() == 0; }));
  EXPECT_EQ(Stats().free_pages(), 8192u);
  EXPECT_EQ((*link)->num_reattached(), 0u);
  EXPECT_TRUE(Reserve(**link, 4, {1024}).ok());
}

TEST_F(StoreProcessTest, AReservationWaitsForTheCommitBeforeIt) {
  StartStore();
  StoreLinkOptions options = LinkOptions();
  options.reserve_timeout = absl::Milliseconds(300);
  options.commit_bytes_per_second = 1;  // so that the commit may take as long as any call
  auto link = StoreLink::Connect(options);
  ASSERT_TRUE(link.ok()) << link.status();
  const auto extents = Reserve(**link, 1, {1024});
  ASSERT_TRUE(extents.ok()) << extents.status();
  WriteSegment(BytesOf(**link, extents->front()), kTinyGeometry, 4, 1024);
  store_->Stop();
  absl::Notification committed, reserved;
  (*link)->Commit(1, {{extents->front().id, 4}}, [&](absl::Status status) {
    EXPECT_TRUE(status.ok()) << status;
    committed.Notify();
  });
  (*link)->Reserve(ReserveRequest::Unnamed(2, std::vector<uint32_t>{1024}),
                   [&](absl::StatusOr<std::vector<Extent>> answer) {
                     EXPECT_TRUE(answer.ok()) << answer.status();
                     reserved.Notify();
                   });
  EXPECT_FALSE(reserved.WaitForNotificationWithTimeout(3 * options.reserve_timeout));
  store_->Signal(SIGCONT);
  committed.WaitForNotification();
  reserved.WaitForNotification();
}

TEST_F(StoreProcessTest, ARestartedStoreWaitsForNobodyIfTheWorkerIsDead) {
  StartStore();
  {
    ChildProcess worker({absl::StrCat(RETROINFER_BINARY_DIR, "/bin/store_fake_worker"), target()},
                        log_path_);
    ASSERT_TRUE(Eventually([&] { return worker.Log().find("ready") != std::string::npos; }));
    store_->Kill();
  }
  ASSERT_TRUE(std::filesystem::exists(folder_ + "/kv_store.state"));
  const absl::Time begin = absl::Now();
  StartStore({"--adopt-wait", "60s"});
  auto link = StoreLink::Connect(LinkOptions());
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
}

// A worker in another pid namespace: the store sees 0 for its process id.
TEST_F(StoreProcessTest, ARestartedStoreKnowsAWorkerWhoseProcessItCannotSee) {
  const auto kill_and_hide = [&] {
    const std::string path = folder_ + "/kv_store.state";
    std::string text;
    // An adoption is noted a moment after it counts.
    ASSERT_TRUE(Eventually([&] {
      text = (std::stringstream() << std::ifstream(path).rdbuf()).str();
      return std::regex_search(text, std::regex("worker_pid [1-9]"));
    }));
    store_->Kill();
    std::ofstream(path, std::ios::trunc)
        << std::regex_replace(text, std::regex("worker_pid [0-9]+"), "worker_pid 0");
  };
  StartStore();
  {
    ChildProcess worker({absl::StrCat(RETROINFER_BINARY_DIR, "/bin/store_fake_worker"), target()},
                        log_path_);
    ASSERT_TRUE(Eventually([&] { return worker.Log().find("ready") != std::string::npos; }));
    kill_and_hide();
    StartStore({"--adopt-wait", "600s"});
    ASSERT_TRUE(Eventually([&] { return Stats().memory_adoptions_total() == 1; }));
    kill_and_hide();
  }
  // Both are dead: nobody comes, and the store does not wait for 600 s.
  StartStore({"--adopt-wait", "600s"});
  auto link = StoreLink::Connect(LinkOptions());
  EXPECT_TRUE(link.ok()) << link.status();
}

TEST_F(StoreProcessTest, ARestartedStoreTurnsOtherModelsAwayWhileItWaits) {
  StartStore();
  ChildProcess worker({absl::StrCat(RETROINFER_BINARY_DIR, "/bin/store_fake_worker"), target()},
                      log_path_);
  ASSERT_TRUE(Eventually([&] { return worker.Log().find("ready") != std::string::npos; }));
  worker.Stop();
  store_->Kill();
  StartStore({"--adopt-wait", "2s"});
  v1::AttachWorkerRequest request;
  request.mutable_geometry()->set_num_layers(4);
  request.mutable_geometry()->set_num_kv_heads(2);
  request.mutable_geometry()->set_head_dim(64);
  request.mutable_geometry()->set_kv_format(2);
  request.set_model_fingerprint("another");
  request.set_log_capacity(64);
  request.set_request_capacity(64);
  const auto attach = [&] {
    v1::AttachWorkerResponse response;
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    return stub_->AttachWorker(&context, request, &response).error_code();
  };
  EXPECT_EQ(attach(), grpc::StatusCode::UNAVAILABLE);
  request.set_hand_back(true);
  EXPECT_EQ(attach(), grpc::StatusCode::FAILED_PRECONDITION);
  // Nobody came: the store allocates anew and takes any worker.
  request.set_hand_back(false);
  EXPECT_TRUE(Eventually([&] { return attach() == grpc::StatusCode::OK; }));
}

// What a process of another user can reach: 0 nothing, else what it reached. Calls only the system.
int ReachedByAnotherUser(const char* socket_path, pid_t store, pid_t worker) {
  constexpr uid_t kNobody = 65534;
  if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) return 1;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket_path, sizeof(address.sun_path) - 1);
  const int channel = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
  if (::connect(channel, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return 2;
  for (const pid_t owner : {store, worker}) {
    for (int fd = 0; fd < 256; ++fd) {
      char path[64];
      std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", owner, fd);
      if (::open(path, O_RDONLY) >= 0) return 3;
    }
    char path[64];
    std::snprintf(path, sizeof(path), "/proc/%d/mem", owner);
    if (::open(path, O_RDONLY) >= 0) return 4;
  }
  return 0;
}

TEST_F(StoreProcessTest, AnotherUserCannotReachTheArena) {
  if (::geteuid() != 0) GTEST_SKIP() << "becoming another user needs root";
  StartStore();
  auto link = StoreLink::Connect(LinkOptions());
  ASSERT_TRUE(link.ok()) << link.status();
  const std::string path = folder_ + "/kv_store_fd.sock";
  const pid_t owner = ::getpid();
  const pid_t other = ::fork();
  if (other == 0) ::_exit(ReachedByAnotherUser(path.c_str(), store_->pid(), owner));
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  // A memfd has no name that anybody could open.
  EXPECT_FALSE(std::filesystem::exists("/dev/shm/retroinfer arena"));
}

TEST_F(StoreProcessTest, GarbageOnTheDescriptorSocketIsRefused) {
  StartStore();
  auto link = StoreLink::Connect(LinkOptions());
  ASSERT_TRUE(link.ok()) << link.status();
  const std::string path = folder_ + "/kv_store_fd.sock";
  const auto refused = [&](uint32_t type, const std::string& payload, bool with_fd) {
    auto channel = common::FdChannel::Connect(path);
    if (!channel.ok()) return false;  // the socket's queue is full
    const int fd = STDERR_FILENO;
    const std::span<const int> fds(&fd, with_fd ? 1 : 0);
    if (!channel->Send(type, payload, fds, absl::Seconds(1)).ok()) return false;
    const auto answer = channel->Receive(absl::Seconds(5));
    return answer.ok() && answer->type == uint32_t(DescriptorMessage::kRefused) &&
           answer->fds.empty();
  };
  EXPECT_TRUE(refused(1, std::string(16, 'x'), false));
  EXPECT_TRUE(refused(1, std::string(16, '\0'), true));
  EXPECT_TRUE(refused(1, "", false));
  EXPECT_TRUE(refused(2, std::string(16, 'x'), true));
  EXPECT_TRUE(refused(3, std::string(4096, 'x'), false));
  EXPECT_TRUE(refused(999, "GET / HTTP/1.0", false));
  std::vector<common::FdChannel> silent;
  for (int i = 0; i < 40; ++i) {
    auto channel = common::FdChannel::Connect(path);
    if (!channel.ok()) continue;
    (void)::send(channel->fd(), "garbage", 7, MSG_NOSIGNAL);
    silent.push_back(*std::move(channel));
  }
  EXPECT_TRUE(Eventually([&] { return refused(1, "again", false); }));
  EXPECT_TRUE(Reserve(**link, 1, {1024}).ok());
}

TEST_F(StoreProcessTest, GarbageInTheRingsIsCountedAndTheServiceLivesOn) {
  StartStore();
  auto link = StoreLink::Connect(LinkOptions());
  ASSERT_TRUE(link.ok()) << link.status();
  auto& log = (*link)->data_plane().log();
  const uint32_t admit = uint32_t(LogKind::kAdmit);
  for (const LogEntry& entry :
       {LogEntry{admit, 8192, 1, 0}, LogEntry{admit, 1, 100, 0}, LogEntry{99, 1, 1, 0},
        LogEntry{0, 1, 1, 0}, LogEntry{uint32_t(LogKind::kEvict), 3, 3, 0},
        LogEntry{admit, kNoPage, kNoSlot, 0}}) {
    ASSERT_TRUE(log.TryPush(entry));
  }
  EXPECT_TRUE(Eventually([&] { return Stats().log_entries_refused_total() == 6; }));
  EXPECT_EQ(Stats().used_slots(), 0u);

  // An impossible cursor.
  auto* control = reinterpret_cast<DataPlaneControl*>(
      reinterpret_cast<std::byte*>(&(*link)->data_plane().stamp_control()) -
      offsetof(DataPlaneControl, stamps));
  const uint64_t head = control->log_head.value.exchange(uint64_t{1} << 60);
  EXPECT_TRUE(Eventually([&] { return Stats().log_entries_refused_total() > 6; }));
  EXPECT_THAT(store_->Log(), HasSubstr("refused garbage from the worker"));
  EXPECT_TRUE(Reserve(**link, 1, {1024}).ok());
  control->log_head.value = head;
  ASSERT_TRUE(log.TryPush({admit, 1, 1, 0}));
  EXPECT_TRUE(Eventually([&] { return Stats().used_slots() == 1; }));
}

TEST_F(StoreProcessTest, EvictsLeastRecentlyUsedPagesWhenSlotsAreShort) {
  StartStore({"--free-slots-low", "0.1", "--free-slots-high", "0.2"});
  auto link = StoreLink::Connect(LinkOptions());
  ASSERT_TRUE(link.ok()) << link.status();
  DataPlane& plane = (*link)->data_plane();
  plane.worker_step() = 1000;
  for (uint32_t slot = 0; slot < 95; ++slot) {
    ASSERT_TRUE(plane.log().TryPush({uint32_t(LogKind::kAdmit), slot + 500, slot, 900}));
  }
  auto& control = plane.stamp_control();
  ASSERT_TRUE(Eventually([&] { return control.requested.value > control.published.value; }));
  for (uint32_t slot = 0; slot < 95; ++slot) plane.stamps()[slot] = 900 + slot;
  control.published.value = control.requested.value.load();
  std::vector<EvictionRequest> requests(64);
  size_t count = 0;
  ASSERT_TRUE(Eventually([&] { return (count = *plane.requests().Pop(requests)) > 0; }));
  ASSERT_EQ(count, 15u);
  for (size_t i = 0; i < count; ++i) {
    EXPECT_EQ(requests[i].slot, i);
    EXPECT_EQ(requests[i].page, 500 + i);
    EXPECT_EQ(requests[i].stamp_seen, 900 + i);
    const LogKind answer = i < 10 ? LogKind::kEvict : LogKind::kKeep;
    ASSERT_TRUE(plane.log().TryPush({uint32_t(answer), requests[i].page, requests[i].slot, 1001}));
  }
  ASSERT_TRUE(Eventually([&] { return Stats().evictions_kept_total() == 5; }));
  const v1::GetStatsResponse stats = Stats();
  EXPECT_EQ(stats.evictions_applied_total(), 10u);
  EXPECT_EQ(stats.used_slots(), 85u);
}

TEST_F(StoreProcessTest, AnIdleStoreLeavesTheProcessorAlone) {
  StartStore();
  auto link = StoreLink::Connect(LinkOptions());
  ASSERT_TRUE(link.ok()) << link.status();
  const absl::Duration before = store_->CpuTime();
  absl::SleepFor(absl::Seconds(2));
  EXPECT_LT(store_->CpuTime() - before, absl::Milliseconds(100));
}

TEST_F(StoreProcessTest, StopsOnSigtermWithAWorkerAttached) {
  StartStore();
  auto link = StoreLink::Connect(LinkOptions());
  ASSERT_TRUE(link.ok()) << link.status();
  store_->Signal(SIGTERM);
  const auto status = store_->Wait(absl::Seconds(5));
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0);
  // A planned restart loses nothing either.
  StartStore();
  EXPECT_TRUE(Eventually([&] { return (*link)->num_reattached() == 1; }));
}

TEST_F(StoreProcessTest, RefusesToStartWithClearNumbers) {
  arena_bytes_ = "7TiB";
  StartStore();
  const auto status = store_->Wait(absl::Seconds(5));
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(WEXITSTATUS(*status), 1);
  EXPECT_THAT(store_->Log(), HasSubstr("needs 7696581394432 bytes (7340032 MiB), but only"));
}

TEST_F(StoreProcessTest, TwoStoresDoNotShareAFolder) {
  StartStore();
  EXPECT_FALSE(Stats().worker_attached());
  ChildProcess second({absl::StrCat(RETROINFER_BINARY_DIR, "/bin/kv_store_service"), "--socket-dir",
                       folder_, "--arena-bytes", "16MiB", "--metrics-address", ""},
                      log_path_);
  const auto status = second.Wait(absl::Seconds(5));
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(WEXITSTATUS(*status), 1);
  EXPECT_THAT(second.Log(), HasSubstr("kv_store_service (process "));
}

// Asks the standard health service; the message types are not needed for one string and one number.
bool IsServing(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  const std::string request = absl::StrCat("\x0a", std::string(1, char(service.size())), service);
  grpc::Slice slice(request);
  grpc::ByteBuffer request_bytes(&slice, 1);
  grpc::ByteBuffer response_bytes;
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(channel);
  auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request_bytes, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&response_bytes, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) return false;
  grpc::Slice response;
  return response_bytes.DumpToSingleSlice(&response).ok() && response.size() == 2 &&
         response.begin()[0] == 8 && response.begin()[1] == 1;
}

TEST_F(StoreProcessTest, TellsItsHealth) {
  StartStore();
  EXPECT_FALSE(Stats().worker_attached());
  EXPECT_TRUE(Eventually([&] { return IsServing(channel_, ""); }));
  EXPECT_TRUE(IsServing(channel_, "retroinfer.kvstore.v1.KvStoreService"));
  EXPECT_TRUE(IsServing(channel_, common::kLivenessService));
  EXPECT_FALSE(IsServing(channel_, "retroinfer.kvstore.v1.Unknown"));
}

}  // namespace
}  // namespace retroinfer::kvstore
