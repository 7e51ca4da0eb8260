#include "common/shm/fd_channel.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace retroinfer::common {
namespace {

constexpr absl::Duration kShort = absl::Milliseconds(20);
constexpr absl::Duration kLong = absl::Seconds(5);

int CountOpenDescriptors() {
  DIR* folder = ::opendir("/proc/self/fd");
  int count = 0;
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

class FdChannelTest : public testing::Test {
 protected:
  FdChannelTest()
      : path_(absl::StrCat(testing::TempDir(), "fd_channel_test.", ::getpid())),
        listener_(*FdListener::Listen(path_)),
        client_(*FdChannel::Connect(path_)),
        server_(*listener_.Accept()) {}

  std::string path_;
  FdListener listener_;
  FdChannel client_;
  FdChannel server_;
};

TEST_F(FdChannelTest, CarriesMessagesAndDescriptors) {
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  UniqueFd read_end(pipe_fds[0]);
  UniqueFd write_end(pipe_fds[1]);
  ASSERT_TRUE(client_.Send(3, "hello", std::array{write_end.get()}, kLong).ok());
  ASSERT_TRUE(client_.Send(4, "", {}, kLong).ok());

  auto message = server_.Receive(kLong);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->type, 3u);
  EXPECT_EQ(message->payload, "hello");
  ASSERT_EQ(message->fds.size(), 1u);
  EXPECT_NE(::fcntl(message->fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_EQ(::write(message->fds[0].get(), "x", 1), 1);
  char got = 0;
  ASSERT_EQ(::read(read_end.get(), &got, 1), 1);
  EXPECT_EQ(got, 'x');

  auto second = server_.Receive(kLong);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->type, 4u);
  EXPECT_TRUE(second->fds.empty());
}

TEST_F(FdChannelTest, CarriesAsManyDescriptorsAsItSays) {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const std::vector<int> fds(FdChannel::kFdsMax, null.get());
  ASSERT_TRUE(client_.Send(3, "all", fds, kLong).ok());
  const auto message = server_.Receive(kLong);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->fds.size(), FdChannel::kFdsMax);
}

TEST_F(FdChannelTest, KnowsItsPeer) {
  EXPECT_TRUE(server_.RequireSameUser().ok());
  EXPECT_EQ(server_.peer_pid(), ::getpid());
}

TEST_F(FdChannelTest, TimesOutAndNoticesTheEnd) {
  EXPECT_EQ(server_.Receive(kShort).status().code(), absl::StatusCode::kDeadlineExceeded);
  { FdChannel gone = std::move(client_); }
  EXPECT_EQ(server_.Receive(kLong).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_.Send(1, "x", {}, kLong).code(), absl::StatusCode::kUnavailable);
}

TEST_F(FdChannelTest, SendTimesOutWhenThePeerDoesNotRead) {
  const std::string payload(FdChannel::kPayloadBytesMax, 'x');
  absl::Status status;
  for (int i = 0; i < 10'000 && status.ok(); ++i) status = client_.Send(1, payload, {}, kShort);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(FdChannelTest, RefusesGarbageAndLeaksNoDescriptor) {
  const int before = CountOpenDescriptors();
  const std::string big(10'000, 'x');
  const std::string frame_of_wrong_size("RTFD\1\0\1\0\7\0\0\0abc", 15);
  const std::string frame_of_wrong_version("RTFD\2\0\1\0\3\0\0\0abc", 15);
  for (const std::string& packet :
       {std::string("x"), std::string("GET / HTTP/1.0\r\n\r\n"), std::string(12, '\0'), big,
        frame_of_wrong_size, frame_of_wrong_version}) {
    ASSERT_GT(::send(client_.fd(), packet.data(), packet.size(), 0), 0);
    EXPECT_EQ(server_.Receive(kLong).status().code(), absl::StatusCode::kInvalidArgument);
  }
  // More descriptors than the protocol allows.
  alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))] = {};
  char byte = 'x';
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(16 * sizeof(int));
  for (int i = 0; i < 16; ++i) std::memset(CMSG_DATA(c) + i * sizeof(int), 0, sizeof(int));
  ASSERT_EQ(::sendmsg(client_.fd(), &message, 0), 1);
  EXPECT_EQ(server_.Receive(kLong).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CountOpenDescriptors(), before);
}

TEST(ParseFdPacketTest, TakesExactlyWhatSendMakes) {
  const std::string good("RTFD\x01\0\x07\0\x02\0\0\0hi", 14);
  const auto message = ParseFdPacket(good);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->type, 7u);
  EXPECT_EQ(message->payload, "hi");
  for (size_t i = 0; i < good.size(); ++i) {
    EXPECT_FALSE(ParseFdPacket(std::span(good.data(), i)).ok()) << i;
  }
  EXPECT_FALSE(ParseFdPacket(good + "x").ok());
  std::string huge("RTFD\x01\0\x07\0\x01\x10\0\0", 12);
  huge.resize(12 + 4097);
  EXPECT_FALSE(ParseFdPacket(huge).ok());
}

TEST_F(FdChannelTest, SocketIsPrivateAndVanishesWithItsListener) {
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(listener_.Accept().status().code(), absl::StatusCode::kUnavailable);
  { FdListener gone = std::move(listener_); }
  EXPECT_NE(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(FdChannel::Connect(path_).status().code(), absl::StatusCode::kNotFound);
}

TEST(FdListenerTest, ReplacesASocketLeftBehindButNoOtherFile) {
  const std::string path = absl::StrCat(testing::TempDir(), "fd_listener_test.", ::getpid());
  UniqueFd left_behind(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
  {
    auto first = FdListener::Listen(path);
    ASSERT_TRUE(first.ok());
    auto second = FdListener::Listen(path);
    EXPECT_TRUE(second.ok()) << second.status();
  }
  UniqueFd file(::open(path.c_str(), O_CREAT | O_WRONLY, 0600));
  EXPECT_FALSE(FdListener::Listen(path).ok());
  ::unlink(path.c_str());
  EXPECT_EQ(FdListener::Listen(std::string(200, 'x')).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace retroinfer::common
