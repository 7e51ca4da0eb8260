#include "common/door/door.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/support/certificates.h"
#include "tests/support/http2_client.h"

namespace retroinfer::common {
namespace {

using test_support::Http2Client;

class DoorTest : public ::testing::Test {
 protected:
  DoorTest() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "retroinfer-door-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    options_.addresses = {"unix:" + folder_ + "/door.sock"};
  }
  ~DoorTest() override {
    door_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Open() {
    auto door = Door::Listen(options_);
    ASSERT_TRUE(door.ok()) << door.status();
    door_ = *std::move(door);
    door_->Open([this](int fd) {
      absl::MutexLock lock(&mutex_);
      handed_over_.emplace_back(fd);
    });
  }
  // Waits for the socket of the connection with this number. Returns -1 if it does not come.
  int ServerEnd(size_t index) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return handed_over_.size() > index;
    };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20))) return -1;
    return handed_over_[index].get();
  }
  // What the server's end receives, at least `bytes` of it.
  std::string Receive(int fd, size_t bytes) {
    std::string received;
    char buffer[4096];
    while (received.size() < bytes) {
      pollfd entry{fd, POLLIN, 0};
      if (::poll(&entry, 1, 20'000) <= 0) break;
      const ssize_t count = ::recv(fd, buffer, sizeof(buffer), 0);
      if (count <= 0) break;
      received.append(buffer, static_cast<size_t>(count));
    }
    return received;
  }
  static bool IsClosed(Http2Client& client) {
    return client.ReadUntil([&] { return !client.connected(); });
  }

  std::string folder_;
  DoorOptions options_;
  absl::Mutex mutex_;
  std::vector<UniqueFd> handed_over_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Door> door_;
};

constexpr size_t kGreetingBytes = 24 + 9;

TEST_F(DoorTest, BytesReachTheServerAndItsBytesTheClient) {
  Open();
  Http2Client client(door_->addresses()[0], false);
  client.Begin();
  ASSERT_TRUE(client.Flush());
  const int server = ServerEnd(0);
  EXPECT_EQ(Receive(server, kGreetingBytes).substr(0, 24), kHttp2Preface);
  std::string frames;
  AppendFrame(FrameType::kSettings, 0, 0, "", &frames);
  for (int i = 0; i < 100; ++i) AppendFrame(FrameType::kPing, 0, 0, "12345678", &frames);
  ASSERT_EQ(::send(server, frames.data(), frames.size(), 0), static_cast<ssize_t>(frames.size()));
  EXPECT_TRUE(client.ReadUntil([&] { return client.frames(Http2Client::kPing) == 100; }));
  EXPECT_EQ(door_->stats().connections, 1);
}

TEST_F(DoorTest, SilentConnectionsAreClosed) {
  options_.timeouts.greeting = absl::Milliseconds(100);
  Open();
  Http2Client silent(door_->addresses()[0], false);
  EXPECT_TRUE(IsClosed(silent));
  Http2Client half(door_->addresses()[0], false);
  half.Raw("PRI * HTTP");
  half.Flush();
  EXPECT_TRUE(IsClosed(half));
}

TEST_F(DoorTest, ANewConnectionTakesThePlaceOfTheOneThatIsIdleLongest) {
  options_.connections_max = 2;
  Open();
  Http2Client first(door_->addresses()[0], false);
  first.Begin();
  first.OpenCall("/a/b", {}, true);
  ASSERT_TRUE(first.Flush());
  ASSERT_GE(ServerEnd(0), 0);
  Http2Client second(door_->addresses()[0], false);
  second.Begin();
  ASSERT_TRUE(second.Flush());
  ASSERT_GE(ServerEnd(1), 0);
  Http2Client third(door_->addresses()[0], false);
  third.Begin();
  ASSERT_TRUE(third.Flush());
  EXPECT_GE(ServerEnd(2), 0);
  EXPECT_TRUE(IsClosed(second));
  EXPECT_TRUE(first.connected());
  EXPECT_TRUE(third.connected());
}

TEST_F(DoorTest, AServerThatDoesNotReadIsNotFlooded) {
  Open();
  Http2Client client(door_->addresses()[0], false);
  client.Begin();
  const uint32_t stream = client.OpenCall("/a/b");
  for (int i = 0; i < 400; ++i) {
    client.Frame(Http2Client::kData, 0, stream, std::string(16384, 'x'));
  }
  EXPECT_FALSE(client.Flush(true, absl::Milliseconds(300)));  // it does not go through
  EXPECT_TRUE(client.connected());
  std::thread rest([&] { EXPECT_TRUE(client.Flush()); });
  const size_t bytes = size_t{400} * 16384;
  EXPECT_GE(Receive(ServerEnd(0), bytes).size(), bytes);  // and goes on when it is read
  rest.join();
}

TEST_F(DoorTest, WhenItAcceptsNoMoreItsSocketsAreGone) {
  options_.addresses.push_back("127.0.0.1:0");
  Open();
  Http2Client before(door_->addresses()[1], false);
  before.Begin();
  ASSERT_TRUE(before.Flush());
  ASSERT_GE(ServerEnd(0), 0);
  door_->StopAccepting();
  for (const std::string& address : door_->addresses()) {
    EXPECT_FALSE(Http2Client(address, false).connected()) << address;
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/door.sock"));
  EXPECT_TRUE(before.connected());
  ::shutdown(ServerEnd(0), SHUT_RDWR);
  EXPECT_TRUE(IsClosed(before));
  door_->AwaitEmpty(absl::Seconds(20));
  EXPECT_EQ(door_->stats().connections, 0);
}

TEST_F(DoorTest, BadCertificatesAtReloadLeaveTheGoodOnes) {
  options_.tls = {folder_ + "/c.pem", folder_ + "/k.pem", ""};
  options_.addresses = {"127.0.0.1:0"};
  WriteCertificate(options_.tls.certificate, options_.tls.key);
  Open();
  const auto serves = [&] { return Http2Client(door_->addresses()[0], true).connected(); };
  EXPECT_TRUE(serves());
  const absl::Time expires = door_->stats().certificate_expires;
  EXPECT_LT(absl::AbsDuration(expires - absl::Now() - absl::Hours(1)), absl::Minutes(5));
  std::ofstream(options_.tls.certificate) << "no certificate";
  door_->ReloadCertificates();
  for (int i = 0; i < 1000 && door_->stats().certificate_reloads_failed == 0; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(door_->stats().certificate_reloads_failed, 1u);
  EXPECT_TRUE(serves());
  EXPECT_EQ(door_->stats().certificate_expires, expires);
}

TEST_F(DoorTest, PlainTextIsRefusedWhereTlsIsWanted) {
  options_.tls = {folder_ + "/c.pem", folder_ + "/k.pem", ""};
  options_.addresses = {"127.0.0.1:0"};
  WriteCertificate(options_.tls.certificate, options_.tls.key);
  Open();
  Http2Client plain(door_->addresses()[0], false);
  plain.Begin();
  plain.Flush();
  EXPECT_TRUE(IsClosed(plain));
}

TEST_F(DoorTest, BadAddressesAndFilesAreErrors) {
  options_.addresses = {"127.0.0.1:99999"};
  EXPECT_EQ(Door::Listen(options_).status().code(), absl::StatusCode::kInvalidArgument);
  options_.addresses = {"127.0.0.1:0"};
  options_.tls.certificate = folder_ + "/absent";
  EXPECT_EQ(Door::Listen(options_).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace retroinfer::common
