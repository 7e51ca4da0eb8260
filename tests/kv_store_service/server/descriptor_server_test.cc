#include "kv_store_service/server/descriptor_server.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <ctime>

#include "common/shm/descriptor_protocol.h"
#include "tests/kv_store_service/segment_writer.h"
#include "tests/kv_store_service/server/child_process.h"
#include "tests/kv_store_service/temporary_folder.h"

namespace retroinfer::kvstore {
namespace {

constexpr uint32_t kHello = uint32_t(DescriptorMessage::kHello);
constexpr uint32_t kHandBack = uint32_t(DescriptorMessage::kHandBack);
constexpr uint32_t kWelcome = uint32_t(DescriptorMessage::kWelcome);
constexpr uint32_t kRefused = uint32_t(DescriptorMessage::kRefused);
constexpr absl::Duration kLong = absl::Seconds(5);

class DescriptorServerTest : public testing::Test {
 protected:
  DescriptorServerTest()
      : path_(folder_.path() + "/fd.sock"), store_({}, StateFile(folder_.path() + "/state")) {
    store_.leases().SetArena(*common::SealedMemory::Create("test arena", 1 << 20, 1));
    DescriptorServer::Options options;
    options.greeting_timeout = absl::Milliseconds(100);
    options.pending_max = 4;
    server_ = *DescriptorServer::Start(path_, &store_, options);
  }
  std::string Attach(bool hand_back = false) {
    return store_.leases().Attach({kTinyGeometry, "model", 16, 64, 64, hand_back})->token;
  }
  common::FdChannel Connect() { return *common::FdChannel::Connect(path_); }

  TemporaryFolder folder_;
  std::string path_;
  KvStore store_;
  std::unique_ptr<DescriptorServer> server_;
};

TEST_F(DescriptorServerTest, GivesTheMemoryAndNoticesTheEndOfTheWorker) {
  const std::string token = Attach();
  {
    common::FdChannel channel = Connect();
    ASSERT_TRUE(channel.Send(kHello, token, {}, kLong).ok());
    auto answer = channel.Receive(kLong);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->type, kWelcome);
    ASSERT_EQ(answer->fds.size(), 2u);
    const auto arena = common::SealedMemory::Adopt(std::move(answer->fds[0]), 1 << 20);
    EXPECT_TRUE(arena.ok()) << arena.status();
    EXPECT_TRUE(store_.leases().HasLease(token));
    // Words on the lease are ignored.
    ASSERT_TRUE(channel.Send(kHello, token, {}, kLong).ok());
    ASSERT_GT(::send(channel.fd(), "garbage", 7, 0), 0);
    EXPECT_EQ(channel.Receive(absl::Milliseconds(50)).status().code(),
              absl::StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(store_.leases().HasLease(token));
  }
  EXPECT_TRUE(Eventually([&] { return !store_.leases().HasLease(token); }));
}

TEST_F(DescriptorServerTest, RefusesWithoutAToken) {
  Attach();
  const int fd = STDERR_FILENO;
  for (const uint32_t type : {kHello, kHandBack, kWelcome, 77u}) {
    for (const size_t num_fds : {0, 1}) {
      common::FdChannel channel = Connect();
      ASSERT_TRUE(channel.Send(type, std::string(16, 'x'), std::span(&fd, num_fds), kLong).ok());
      const auto answer = channel.Receive(kLong);
      ASSERT_TRUE(answer.ok()) << answer.status();
      EXPECT_EQ(answer->type, kRefused);
      EXPECT_TRUE(answer->fds.empty());
      EXPECT_EQ(channel.Receive(kLong).status().code(), absl::StatusCode::kUnavailable);
    }
  }
}

TEST_F(DescriptorServerTest, TakesMemoryBack) {
  std::string token = Attach();
  common::FdChannel first = Connect();
  ASSERT_TRUE(first.Send(kHello, token, {}, kLong).ok());
  auto memory = first.Receive(kLong);
  ASSERT_TRUE(memory.ok());
  store_.leases().EndLease(token, "test");
  token = Attach(/*hand_back=*/true);
  common::FdChannel second = Connect();
  const std::array fds = {memory->fds[0].get(), memory->fds[1].get()};
  ASSERT_TRUE(second.Send(kHandBack, token, fds, kLong).ok());
  const auto answer = second.Receive(kLong);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->type, kWelcome);
  EXPECT_TRUE(answer->fds.empty());
  EXPECT_TRUE(store_.leases().HasLease(token));
  EXPECT_EQ(first.Receive(kLong).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(DescriptorServerTest, SilentConnectionsAreClosedAndDoNotKeepOthersOut) {
  std::vector<common::FdChannel> silent;
  for (int i = 0; i < 12; ++i) silent.push_back(Connect());
  EXPECT_EQ(silent[0].Receive(kLong).status().code(), absl::StatusCode::kUnavailable);
  const std::string token = Attach();
  common::FdChannel channel = Connect();
  ASSERT_TRUE(channel.Send(kHello, token, {}, kLong).ok());
  const auto answer = channel.Receive(kLong);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->type, kWelcome);
  EXPECT_EQ(silent[11].Receive(kLong).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(DescriptorServerTest, WaitsForDescriptorsWithoutTurningRound) {
  const std::string token = Attach();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int free = ::dup(STDERR_FILENO);
  ::close(free);
  const rlimit none_but_one{static_cast<rlim_t>(free) + 1, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none_but_one), 0);
  common::FdChannel channel = Connect();
  ASSERT_TRUE(channel.Send(kHello, token, {}, kLong).ok());
  const absl::Time begin = absl::Now();
  const std::clock_t cpu_begin = std::clock();
  absl::SleepFor(absl::Seconds(1));
  const double cpu_seconds = static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC;
  EXPECT_LT(cpu_seconds, 0.2 * absl::ToDoubleSeconds(absl::Now() - begin));
  EXPECT_FALSE(store_.leases().HasLease(token));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  const auto answer = channel.Receive(kLong);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->type, kWelcome);
}

TEST_F(DescriptorServerTest, ClosesEverythingAtTheEnd) {
  const std::string token = Attach();
  common::FdChannel channel = Connect();
  ASSERT_TRUE(channel.Send(kHello, token, {}, kLong).ok());
  ASSERT_TRUE(channel.Receive(kLong).ok());
  server_.reset();
  EXPECT_EQ(channel.Receive(kLong).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(common::FdChannel::Connect(path_).ok());
}

}  // namespace
}  // namespace retroinfer::kvstore
