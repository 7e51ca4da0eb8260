// What a rank does with messages that cannot be; what it does with real ones is in rank_group_test.
#include "gpu_worker/ranks/rank_follower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/support/commanded_options.h"
#include "tests/support/in_process_worker.h"

namespace retroinfer {
namespace {

using namespace test_support;

constexpr absl::Duration kLong = absl::Minutes(1);

std::string Opening(uint64_t id) {
  StepCommand command;
  StepCommand::Open& open = command.open.emplace_back();
  open.id = id;
  open.prompt = {1, 2, 3};
  open.total_tokens = 10;
  return EncodeRankCommand({}, EncodeCommand(command, Drawing::kElsewhere).value());
}

class RankFollowerTest : public testing::Test {
 protected:
  static InProcessWorkerOptions Options() {
    InProcessWorkerOptions options = CommandedOptions();
    options.arena_bytes = size_t{16} << 20;
    options.is_commanded = true;
    options.drawing = Drawing::kElsewhere;
    return options;
  }
  RankFollowerTest() : worker_(Options()) { Start(); }
  ~RankFollowerTest() override {
    rank0_.reset();
    if (thread_.joinable()) thread_.join();
  }
  // Begins anew, with what the executor has by now.
  void Start() {
    auto ends = RankChannel::MakePair().value();
    rank0_ = std::make_unique<RankChannel>(std::move(ends.first));
    own_ = std::make_unique<RankChannel>(std::move(ends.second));
    thread_ = std::thread([this] {
      end_ = RankFollower({.channel = own_.get(),
                           .commands = &worker_.commands(),
                           .written = &worker_.written(),
                           .limits = CommandedLimits(worker_.config())})
                 .Run();
    });
  }
  absl::Status Send(RankMessageType type, const std::string& payload) {
    return rank0_->Send(type, payload, kLong);
  }
  RankMessage Next() { return rank0_->Receive(kLong).value(); }
  // Waits until it ends, and returns how.
  absl::Status End() {
    thread_.join();
    return end_;
  }

  InProcessWorker worker_;
  std::unique_ptr<RankChannel> rank0_, own_;
  absl::Status end_;
  std::thread thread_;
};

TEST_F(RankFollowerTest, EndsWhenItIsTold) {
  ASSERT_TRUE(Send(RankMessageType::kCommand, Opening(1)).ok());
  const RankMessage message = Next();
  EXPECT_EQ(message.type, RankMessageType::kAnswer);
  const auto answer = DecodeAnswer(message.payload, CommandedLimits(worker_.config()));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_GT(answer->stats.device_bytes, 0u);
  ASSERT_TRUE(Send(RankMessageType::kSnapshot, "").ok());
  ASSERT_TRUE(Send(RankMessageType::kEnd, "").ok());
  EXPECT_TRUE(End().ok()) << end_;
}

TEST_F(RankFollowerTest, EndsWhenRankZeroIsGone) {
  rank0_.reset();
  EXPECT_TRUE(End().ok()) << end_;
}

TEST_F(RankFollowerTest, WhatCannotBeIsToldAndEndsIt) {
  const struct {
    RankMessageType type;
    std::string payload;
    const char* why;
  } cases[] = {
      {RankMessageType::kCommand, "\xff\xff", "no command"},
      {RankMessageType::kCommand, Opening(1), "known already"},
      {RankMessageType::kCommand, EncodeRankCommand({{.id = 1, .num_rows = 1}}, ""), "taken back"},
      {RankMessageType::kCommand, EncodeRankCommand({{.id = 9, .num_rows = 1}}, ""), "taken back"},
      {RankMessageType::kHello, "", "message of type"},
  };
  ASSERT_TRUE(Send(RankMessageType::kCommand, Opening(1)).ok());
  EXPECT_EQ(Next().type, RankMessageType::kAnswer);
  for (const auto& one : cases) {
    ASSERT_TRUE(Send(one.type, one.payload).ok());
    const RankMessage message = Next();
    EXPECT_EQ(message.type, RankMessageType::kFailure);
    const absl::Status told = DecodeFailure(message.payload);
    EXPECT_EQ(told, End());
    EXPECT_THAT(std::string(told.message()), testing::HasSubstr(one.why));
    Start();
  }
}

// Bytes that are nearly a command: each is answered, or ends the follower, which has lost nothing.
TEST_F(RankFollowerTest, ChangedCommandsDoNoHarm) {
  std::mt19937_64 random(7);
  for (uint64_t i = 0; i < 300; ++i) {
    std::string payload = Opening(100 + i);
    payload[random() % payload.size()] ^= static_cast<char>(1 << random() % 8);
    ASSERT_TRUE(Send(RankMessageType::kCommand, payload).ok());
    const RankMessage message = Next();
    if (message.type == RankMessageType::kAnswer) continue;
    EXPECT_EQ(message.type, RankMessageType::kFailure);
    EXPECT_FALSE(End().ok());
    Start();
  }
}

}  // namespace
}  // namespace retroinfer
