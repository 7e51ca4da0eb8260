#include "gpu_worker/server/rank_main.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gpu_worker/ranks/rank_process.h"

namespace retroinfer {
namespace {

using testing::ElementsAre;

TEST(RankMainTest, ARankIsThisProgramWithTheSameArguments) {
  const char* const argv[] = {"gpu_worker", "--model", "x"};
  EXPECT_THAT(RankProgram(3, argv), ElementsAre("/proc/self/exe", "--model", "x"));
}

class RankMainSocketTest : public testing::Test {
 protected:
  RankMainSocketTest() : kept_(::dup(RankProcess::kSocket)) { ::close(RankProcess::kSocket); }
  ~RankMainSocketTest() override {
    ::close(RankProcess::kSocket);
    if (kept_ >= 0) ::dup2(kept_, RankProcess::kSocket);
    ::close(kept_);
  }
  static void Connect() {
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_GE(socket, 0);
    if (socket == RankProcess::kSocket) return;
    ASSERT_EQ(::dup2(socket, RankProcess::kSocket), RankProcess::kSocket);
    ::close(socket);
  }

 private:
  const int kept_;
};

TEST_F(RankMainSocketTest, TheLastArgumentIsTakenAway) {
  Connect();
  const char* const argv[] = {"gpu_worker", "--model=x", "--rank=3"};
  int argc = 3;
  const auto rank = TakeRank(&argc, argv);
  ASSERT_TRUE(rank.ok()) << rank.status();
  EXPECT_EQ(*rank, 3);
  EXPECT_EQ(argc, 2);
  EXPECT_EQ(TakeRank(&argc, argv).value(), std::nullopt);
  EXPECT_EQ(argc, 2);
}

TEST_F(RankMainSocketTest, NoRankHasSuchANumber) {
  Connect();
  for (const char* const number : {"--rank=0", "--rank=8", "--rank=-1", "--rank=x", "--rank="}) {
    const char* const argv[] = {"gpu_worker", number};
    int argc = 2;
    EXPECT_EQ(TakeRank(&argc, argv).status().code(), absl::StatusCode::kInvalidArgument) << number;
  }
}

TEST_F(RankMainSocketTest, NobodyStartsARankByHand) {
  const char* const argv[] = {"gpu_worker", "--rank=1"};
  int argc = 2;
  const absl::Status status = TakeRank(&argc, argv).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("--tensor-parallel"));
}

}  // namespace
}  // namespace retroinfer
