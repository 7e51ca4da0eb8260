#include "common/shm/socket_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "common/clock/steady_now.h"

namespace retroinfer::common {
namespace {

using testing::HasSubstr;

class SocketMessagesTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    one_.Reset(ends[0]);
    other_.Reset(ends[1]);
  }
  // Which file a descriptor is of.
  static std::pair<dev_t, ino_t> FileOf(int fd) {
    struct stat info {};
    EXPECT_EQ(::fstat(fd, &info), 0);
    return {info.st_dev, info.st_ino};
  }

  UniqueFd one_, other_;
};

TEST_F(SocketMessagesTest, DescriptorsComeBesideBytes) {
  char byte = 'b';
  iovec part{&byte, 1};
  for (const size_t count : {size_t{0}, size_t{1}, size_t{3}}) {
    const std::array<int, 3> fds = {one_.get(), other_.get(), one_.get()};
    FdRoom<3> room;
    msghdr sent{};
    sent.msg_iov = &part;
    sent.msg_iovlen = 1;
    PutFds(std::span(fds).first(count), room.bytes, &sent);
    ASSERT_EQ(::sendmsg(one_.get(), &sent, MSG_NOSIGNAL), 1);
    FdRoom<3> room_of_other;
    msghdr received{};
    received.msg_iov = &part;
    received.msg_iovlen = 1;
    received.msg_control = room_of_other.bytes;
    received.msg_controllen = sizeof(room_of_other.bytes);
    ASSERT_EQ(::recvmsg(other_.get(), &received, MSG_CMSG_CLOEXEC), 1);
    std::vector<UniqueFd> taken;
    TakeFds(&received, &taken);
    ASSERT_EQ(taken.size(), count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_NE(taken[i].get(), fds[i]);
      EXPECT_EQ(FileOf(taken[i].get()), FileOf(fds[i]));
    }
  }
}

TEST_F(SocketMessagesTest, AWaitEndsWithWhatComesOrAtItsDeadline) {
  const absl::Status late =
      AwaitSocket(one_.get(), POLLIN, SteadyNow() + absl::Milliseconds(1), "the other end");
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.message()), HasSubstr("the other end did not answer"));
  ASSERT_EQ(::write(other_.get(), "x", 1), 1);
  EXPECT_TRUE(AwaitSocket(one_.get(), POLLIN, absl::InfinitePast(), "the other end").ok());
  EXPECT_TRUE(AwaitSocket(one_.get(), POLLIN, absl::InfiniteFuture(), "the other end").ok());
}

}  // namespace
}  // namespace retroinfer::common
