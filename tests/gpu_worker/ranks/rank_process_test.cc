#include "gpu_worker/ranks/rank_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

namespace retroinfer {
namespace {

constexpr absl::Duration kLong = absl::Minutes(1);

// A descriptor to hand on.
int Memory() {
  static const int memory = ::memfd_create("shared", MFD_CLOEXEC);
  return memory;
}

std::vector<std::string> Shell(const std::string& script) { return {"/bin/sh", "-c", script}; }

// The header of an empty message of type kEnd, and nothing behind it.
constexpr char kSendsOne[] =
    "printf 'RTRK\\001\\000\\007\\000\\000\\000\\000\\000\\000\\000\\000\\000' >&3";

TEST(RankProcessTest, GetsTheSocketAsDescriptorThree) {
  auto process = RankProcess::Start(Shell(kSendsOne), Memory());
  ASSERT_TRUE(process.ok()) << process.status();
  const auto message = (*process)->channel().Receive(kLong);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->type, RankMessageType::kEnd);
  EXPECT_TRUE(absl::IsUnavailable((*process)->channel().Receive(kLong).status()));
  EXPECT_EQ((*process)->DescribeEnd(kLong), "exit code 0");
}

TEST(RankProcessTest, GetsTheMemoryAsDescriptorFour) {
  ASSERT_EQ(::ftruncate(Memory(), 0), 0);
  auto process = RankProcess::Start(Shell("printf shared >&4"), Memory());
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ((*process)->DescribeEnd(kLong), "exit code 0");
  char bytes[6];
  EXPECT_EQ(::pread(Memory(), bytes, sizeof(bytes), 0), 6);
  EXPECT_EQ(std::string(bytes, 6), "shared");
}

TEST(RankProcessTest, TellsHowAProcessHasEnded) {
  auto process = RankProcess::Start(Shell("exit 3"), Memory());
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ((*process)->DescribeEnd(kLong), "exit code 3");
  process = RankProcess::Start(Shell("exec cat <&3"), Memory());
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ((*process)->DescribeEnd(absl::ZeroDuration()), "it has not ended");
  ::kill((*process)->pid(), SIGKILL);
  EXPECT_EQ((*process)->DescribeEnd(kLong), "signal 9 (Killed)");
}

TEST(RankProcessTest, EndsWithItsSocket) {
  auto process = RankProcess::Start(Shell("exec cat <&3"), Memory());
  ASSERT_TRUE(process.ok()) << process.status();
  const pid_t pid = (*process)->pid();
  EXPECT_NE(::getpgid(pid), ::getpgid(0)) << "Ctrl-C would reach it";
  process->reset();
  EXPECT_EQ(::kill(pid, 0), -1);
}

// Nobody else holds the socket of a rank: the processes of other ranks do not inherit it.
TEST(RankProcessTest, TheSocketIsClosedWhateverOthersLive) {
  auto first = RankProcess::Start(Shell("exec cat <&3"), Memory());
  auto second = RankProcess::Start(Shell("exec cat <&3"), Memory());
  ASSERT_TRUE(first.ok() && second.ok());
  ::kill((*first)->pid(), SIGKILL);
  EXPECT_TRUE(absl::IsUnavailable((*first)->channel().Receive(kLong).status()));
  first->reset();
  EXPECT_FALSE((*second)->channel().IsClosed());
}

TEST(RankProcessTest, AProgramThatIsNotThereIsSaid) {
  const auto process = RankProcess::Start({"/nowhere/gpu_worker"}, Memory());
  EXPECT_TRUE(absl::IsNotFound(process.status())) << process.status();
  EXPECT_THAT(std::string(process.status().message()), testing::HasSubstr("/nowhere/gpu_worker"));
}

}  // namespace
}  // namespace retroinfer
