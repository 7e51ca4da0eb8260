#include "gpu_worker/ranks/rank_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>

namespace retroinfer {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kLong = absl::Minutes(1);

class RankChannelTest : public testing::Test {
 protected:
  RankChannelTest() {
    auto ends = RankChannel::MakePair().value();
    raw_ = ends.first.get();
    near_ = std::make_unique<RankChannel>(std::move(ends.first));
    far_ = std::make_unique<RankChannel>(std::move(ends.second));
  }
  void SendRaw(std::string_view bytes) {
    ASSERT_EQ(::send(raw_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  static std::string Header(std::string_view magic, uint16_t version, uint16_t type,
                            uint64_t bytes) {
    std::string header(magic);
    header.append(reinterpret_cast<const char*>(&version), sizeof(version));
    header.append(reinterpret_cast<const char*>(&type), sizeof(type));
    header.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
    return header;
  }

  int raw_ = -1;
  std::unique_ptr<RankChannel> near_, far_;
};

TEST_F(RankChannelTest, MessagesComeInOrderWhateverTheirLength) {
  std::string large(5 << 20, '\0');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 7 + i / 4096);
  std::thread sender([&] {
    EXPECT_TRUE(near_->Send(RankMessageType::kCommand, "", kLong).ok());
    EXPECT_TRUE(near_->Send(RankMessageType::kCommand, large, kLong).ok());
    EXPECT_TRUE(near_->Send(RankMessageType::kEnd, "x", kLong).ok());
  });
  auto message = far_->Receive(kLong);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->type, RankMessageType::kCommand);
  EXPECT_EQ(message->payload, "");
  message = far_->Receive(kLong);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_TRUE(message->payload == large);
  message = far_->Receive(kLong);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->type, RankMessageType::kEnd);
  EXPECT_EQ(message->payload, "x");
  sender.join();
}

TEST_F(RankChannelTest, DescriptorsComeWithTheirMessage) {
  const common::UniqueFd memory(::memfd_create("test", 0));
  ASSERT_EQ(::write(memory.get(), "abc", 3), 3);
  const int fds[] = {memory.get(), memory.get()};
  ASSERT_TRUE(near_->Send(RankMessageType::kHello, "before", kLong).ok());
  ASSERT_TRUE(near_->Send(RankMessageType::kMemory, std::string(100000, 'm'), kLong, fds).ok());
  auto message = far_->Receive(kLong);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_TRUE(message->fds.empty());
  message = far_->Receive(kLong);
  ASSERT_TRUE(message.ok()) << message.status();
  ASSERT_EQ(message->fds.size(), 2u);
  char bytes[3];
  EXPECT_EQ(::pread(message->fds[1].get(), bytes, 3, 0), 3);
  EXPECT_EQ(std::string(bytes, 3), "abc");
}

TEST_F(RankChannelTest, WhatIsNoMessageIsRefused) {
  const struct {
    std::string bytes;
    const char* why;
  } cases[] = {
      {Header("RTFD", 1, 4, 0), "no message"},
      {Header("RTRK", 2, 4, 0), "version 2"},
      {Header("RTRK", 1, 0, 0), "type 0"},
      {Header("RTRK", 1, 9, 0), "type 9"},
      {Header("RTRK", 1, 4, RankChannel::kPayloadBytesMax + 1), "bytes"},
      {Header("RTRK", 1, 4, ~uint64_t{0}), "bytes"},
  };
  for (const auto& one : cases) {
    auto ends = RankChannel::MakePair().value();
    ASSERT_EQ(::send(ends.first.get(), one.bytes.data(), one.bytes.size(), 0),
              static_cast<ssize_t>(one.bytes.size()));
    RankChannel channel(std::move(ends.second));
    const auto message = channel.Receive(kLong);
    EXPECT_EQ(message.status().code(), absl::StatusCode::kInvalidArgument) << one.why;
    EXPECT_THAT(std::string(message.status().message()), HasSubstr(one.why));
  }
}

// A length that is announced takes no memory: what has come does.
TEST_F(RankChannelTest, APeerThatEndsWithinAMessageIsGone) {
  SendRaw(Header("RTRK", 1, 4, RankChannel::kPayloadBytesMax) + "a little");
  near_.reset();
  EXPECT_TRUE(absl::IsUnavailable(far_->Receive(kLong).status()));
  EXPECT_TRUE(far_->IsClosed());
}

TEST_F(RankChannelTest, WhoIsGoneGetsNothing) {
  EXPECT_FALSE(near_->IsClosed());
  far_.reset();
  EXPECT_TRUE(near_->IsClosed());
  EXPECT_TRUE(absl::IsUnavailable(near_->Send(RankMessageType::kCommand, "x", kLong)));
  EXPECT_TRUE(absl::IsUnavailable(near_->Receive(kLong).status()));
}

TEST_F(RankChannelTest, NobodyIsWaitedForLongerThanSaid) {
  EXPECT_FALSE(far_->AwaitMessage(absl::ZeroDuration()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(far_->Receive(absl::ZeroDuration()).status()));
  // Nobody reads: more than the socket holds.
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      near_->Send(RankMessageType::kCommand, std::string(16 << 20, 'x'), absl::ZeroDuration())));
  EXPECT_TRUE(far_->AwaitMessage(kLong));
}

TEST_F(RankChannelTest, AMessageThatIsTooLongIsNotSent) {
  const std::string_view bytes("", 0);
  const std::string_view too_long(bytes.data(), RankChannel::kPayloadBytesMax + 1);
  EXPECT_EQ(near_->Send(RankMessageType::kCommand, too_long, kLong).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(far_->AwaitMessage(absl::ZeroDuration()));
}

}  // namespace
}  // namespace retroinfer
