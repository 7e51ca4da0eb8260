#include "common/door/door_connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>

namespace retroinfer::common {
namespace {

class DoorConnectionTest : public ::testing::Test {
 protected:
  DoorConnectionTest() {
    context_ = {
        &policy_, &budget_, [this](int fd) { server_.Reset(fd); }, [](DoorConnection*) {}, {}};
    std::array<int, 2> pair;
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair.data()), 0);
    client_.Reset(pair[0]);
    connection_ = std::make_unique<DoorConnection>(&context_, UniqueFd(pair[1]), nullptr, now_);
  }

  void Greet() {
    std::string greeting(kHttp2Preface);
    AppendFrame(FrameType::kSettings, 0, 0, "", &greeting);
    Send(client_, greeting);
    Pump();
    EXPECT_EQ(Receive(server_), greeting);
    Send(server_, greeting.substr(kHttp2Preface.size()));
    Pump();
    EXPECT_EQ(Receive(client_).size(), kFrameHeaderBytes);
  }
  void Pump() {
    connection_->OnClientEvent(true, true);
    connection_->OnServerEvent(true, true);
    while (connection_->Pump(now_)) {
    }
  }
  static void Send(const UniqueFd& fd, const std::string& bytes) {
    EXPECT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  static std::string Receive(const UniqueFd& fd) {
    std::string bytes(100'000, '\0');
    const ssize_t count = ::recv(fd.get(), bytes.data(), bytes.size(), 0);
    bytes.resize(count > 0 ? static_cast<size_t>(count) : 0);
    return bytes;
  }
  static std::string Call(uint32_t stream) {
    std::string block;
    AppendLiteralHeader(":path", "/a/b", &block);
    std::string out;
    AppendFrame(FrameType::kHeaders, 5, stream, block, &out);
    return out;
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  CallGate::Policy policy_;
  GateBudget budget_{GateBudget::Limits()};
  DoorConnection::Context context_;
  UniqueFd client_;
  UniqueFd server_;  // gRPC's end
  std::unique_ptr<DoorConnection> connection_;
};

TEST_F(DoorConnectionTest, TheServerHearsOfAConnectionThatHasGreeted) {
  Send(client_, std::string(kHttp2Preface));
  Pump();
  EXPECT_FALSE(server_.valid());
  std::string settings;
  AppendFrame(FrameType::kSettings, 0, 0, "", &settings);
  Send(client_, settings);
  Pump();
  EXPECT_TRUE(server_.valid());
}

TEST_F(DoorConnectionTest, ACallOfAClientThatHasGoneLastsUntilItsAnswer) {
  Greet();
  Send(client_, Call(1));
  Pump();
  EXPECT_FALSE(Receive(server_).empty());
  client_.Reset();
  Pump();
  EXPECT_TRUE(connection_->draining());
  EXPECT_EQ(budget_.abandoned, 1);
  std::string answer;
  AppendFrame(FrameType::kHeaders, frame_flag::kEndHeaders, 1, "", &answer);
  Send(server_, answer);
  Pump();
  EXPECT_EQ(budget_.abandoned, 0);
  EXPECT_TRUE(connection_->done());
}

TEST_F(DoorConnectionTest, ACallWithoutAnAnswerIsGivenUp) {
  Greet();
  Send(client_, Call(1));
  Pump();
  client_.Reset();
  Pump();
  now_ += context_.timeouts.cancelled + absl::Seconds(1);
  connection_->Tick(now_);
  Pump();
  EXPECT_TRUE(connection_->done());
}

TEST_F(DoorConnectionTest, WhatTheServerSaidLastStillArrives) {
  Greet();
  std::string last;
  AppendFrame(FrameType::kPing, 0, 0, "12345678", &last);
  Send(server_, last);
  server_.Reset();
  Pump();
  EXPECT_EQ(Receive(client_), last);
  EXPECT_FALSE(connection_->done());  // until the client has closed, or a moment has passed
  client_.Reset();
  Pump();
  EXPECT_TRUE(connection_->done());
}

TEST_F(DoorConnectionTest, ErrorsAreToldBeforeTheEnd) {
  Greet();
  std::string bad;
  AppendFrame(FrameType::kPushPromise, 4, 1, "1234", &bad);
  Send(client_, bad);
  Pump();
  EXPECT_EQ(ParseFrameHeader(Receive(client_)).type, FrameType::kGoAway);
  EXPECT_EQ(connection_->error().code(), absl::StatusCode::kInvalidArgument);
  now_ += context_.timeouts.farewell + absl::Seconds(1);
  connection_->Tick(now_);
  EXPECT_TRUE(connection_->done());
}

TEST_F(DoorConnectionTest, StalledAndUnreadConnectionsEnd) {
  Greet();
  EXPECT_LT(connection_->idle_since(), absl::InfiniteFuture());
  Send(client_, Call(1).substr(0, 12));
  Pump();
  now_ += context_.timeouts.frame - absl::Seconds(1);
  connection_->Tick(now_);
  EXPECT_TRUE(connection_->error().ok());
  now_ += absl::Seconds(2);
  connection_->Tick(now_);
  EXPECT_EQ(connection_->error().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(DoorConnectionTest, AClientThatReadsNothingIsNotReadForAndEnds) {
  Greet();
  std::string frame;
  AppendFrame(FrameType::kData, 0, 1, std::string(16384, 'x'), &frame);
  for (int i = 0; i < 200; ++i) {
    if (::send(server_.get(), frame.data(), frame.size(), MSG_NOSIGNAL) < 0) break;
    Pump();
    ASSERT_LT(i, 150);
  }
  now_ += context_.timeouts.unread + absl::Seconds(1);
  connection_->Tick(now_);
  EXPECT_EQ(connection_->error().code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace retroinfer::common
