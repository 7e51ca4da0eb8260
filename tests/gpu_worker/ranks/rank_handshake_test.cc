#include "gpu_worker/ranks/rank_handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <functional>
#include <memory>

namespace retroinfer {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kLong = absl::Minutes(1);

RankHello Hello(uint32_t rank) {
  return {.version = "1.2",
          .revision = "abc",
          .rank = rank,
          .num_ranks = 3,
          .fingerprint = "a name of 16 byt",
          .backend = "cuda",
          .device_name = "card",
          .available_bytes = 1000,
          .weight_bytes = 100};
}

class RankHandshakeTest : public testing::Test {
 protected:
  RankHandshakeTest() {
    for (int i = 0; i < 2; ++i) {
      auto ends = RankChannel::MakePair().value();
      near_.push_back(std::make_unique<RankChannel>(std::move(ends.first)));
      far_.push_back(std::make_unique<RankChannel>(std::move(ends.second)));
      channels_.push_back(near_.back().get());
    }
  }
  void Send(size_t i, RankMessageType type, const std::string& payload) {
    ASSERT_TRUE(far_[i]->Send(type, payload, kLong).ok());
  }

  std::vector<std::unique_ptr<RankChannel>> near_, far_;
  std::vector<RankChannel*> channels_;
};

TEST_F(RankHandshakeTest, AllPlanWithTheLeastThatThereIs) {
  RankHello first = Hello(1), second = Hello(2);
  first.available_bytes = 900;
  second.weight_bytes = 150;
  Send(0, RankMessageType::kHello, EncodeHello(first));
  Send(1, RankMessageType::kHello, EncodeHello(second));
  const auto memory = MeetRanks(channels_, Hello(0), {});
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->available_bytes, 900u);
  EXPECT_EQ(memory->weight_bytes, 150u);
}

TEST_F(RankHandshakeTest, WhoIsNotLikeRankZeroIsNamed) {
  const struct {
    std::function<void(RankHello&)> change;
    const char* what;
  } cases[] = {
      {[](RankHello& hello) { hello.version = "1.3"; }, "version 1.3"},
      {[](RankHello& hello) { hello.revision = "dirty"; }, "dirty"},
      {[](RankHello& hello) { hello.rank = 1; }, "rank 1 of 3"},
      {[](RankHello& hello) { hello.num_ranks = 4; }, "of 4"},
      {[](RankHello& hello) { hello.device_name = "older card"; }, "older card"},
      {[](RankHello& hello) { hello.backend = "cpu"; }, "(cpu)"},
      {[](RankHello& hello) { hello.fingerprint = "another"; }, "another model"},
  };
  for (const auto& one : cases) {
    RankHello hello = Hello(2);
    one.change(hello);
    Send(0, RankMessageType::kHello, EncodeHello(Hello(1)));
    Send(1, RankMessageType::kHello, EncodeHello(hello));
    const absl::Status status = MeetRanks(channels_, Hello(0), {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.what));
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2: "));
  }
}

TEST_F(RankHandshakeTest, AFailureIsTold) {
  Send(0, RankMessageType::kFailure, EncodeFailure(absl::ResourceExhaustedError("no memory")));
  EXPECT_EQ(MeetRanks(channels_, Hello(0), {}).status(),
            absl::ResourceExhaustedError("rank 1: no memory"));
  Send(0, RankMessageType::kReady, EncodeReady("plan"));
  EXPECT_EQ(MeetRanks(channels_, Hello(0), {}).status().code(), absl::StatusCode::kInvalidArgument);
  Send(0, RankMessageType::kHello, "\xff\xff\xff");
  EXPECT_EQ(MeetRanks(channels_, Hello(0), {}).status().code(), absl::StatusCode::kInvalidArgument);
  far_[0].reset();
  EXPECT_TRUE(absl::IsUnavailable(MeetRanks(channels_, Hello(0), {}).status()));
}

TEST_F(RankHandshakeTest, NobodyIsWaitedForForEver) {
  int num_waits = 0;
  const auto memory = MeetRanks(channels_, Hello(0),
                                {.limit = absl::Milliseconds(1), .on_wait = [&] { ++num_waits; }});
  EXPECT_TRUE(absl::IsDeadlineExceeded(memory.status())) << memory.status();
  EXPECT_GT(num_waits, 0);
}

TEST_F(RankHandshakeTest, EachGetsItsMemory) {
  const common::UniqueFd arena(::memfd_create("arena", 0)), plane(::memfd_create("plane", 0));
  ASSERT_TRUE(
      HandOverMemory(channels_, {.available_bytes = 5, .arena_pages = 7},
                     std::vector<std::vector<int>>{{arena.get()}, {arena.get(), plane.get()}})
          .ok());
  for (size_t i = 0; i < 2; ++i) {
    const auto message = far_[i]->Receive(kLong);
    ASSERT_TRUE(message.ok()) << message.status();
    EXPECT_EQ(message->type, RankMessageType::kMemory);
    EXPECT_EQ(message->fds.size(), i + 1);
    EXPECT_EQ(DecodeSharedPlan(message->payload).value().arena_pages, 7u);
  }
}

TEST_F(RankHandshakeTest, AllHaveTheSamePlan) {
  Send(0, RankMessageType::kReady, EncodeReady("so many blocks"));
  Send(1, RankMessageType::kReady, EncodeReady("so many blocks"));
  EXPECT_TRUE(AwaitReady(channels_, "so many blocks", {}).ok());
  Send(0, RankMessageType::kReady, EncodeReady("so many blocks"));
  Send(1, RankMessageType::kReady, EncodeReady("fewer blocks"));
  const absl::Status status = AwaitReady(channels_, "so many blocks", {});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("fewer blocks"));
}

}  // namespace
}  // namespace retroinfer
