// A rank of a small model, whose rank 0 is the test.
#include "gpu_worker/assembly/served_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"
#include "common/shm/data_plane.h"
#include "common/shm/sealed_memory.h"
#include "gpu_worker/assembly/engine_plan.h"
#include "gpu_worker/model/model_shapes.h"
#include "gpu_worker/ops/collective/rank_memory.h"
#include "gpu_worker/ranks/rank_messages.h"

namespace retroinfer {
namespace {

constexpr absl::Duration kLong = absl::Minutes(2);
constexpr uint32_t kArenaPages = 1 << 13;
constexpr uint64_t kMemory = uint64_t{1} << 30;

class ServedRankTest : public testing::Test {
 protected:
  ServedRankTest() {
    options_.load_format = "dummy";
    options_.model_shape = "tiny";
    options_.device = "cpu";
    options_.num_threads = 1;
    options_.max_model_len = 2048;
    options_.memory_bytes = kMemory;
    options_.rank = 1;
    options_.num_ranks = 2;
    auto ends = RankChannel::MakePair().value();
    rank0_ = std::make_unique<RankChannel>(std::move(ends.first));
    own_ = std::make_unique<RankChannel>(std::move(ends.second));
    const size_t bytes = RankMemory::Bytes(2);
    shared_ = common::SealedMemory::Create("shared", bytes, 1).value();
    EXPECT_TRUE(RankMemory::Format(shared_.bytes(), 2).ok());
  }
  ~ServedRankTest() override {
    rank0_.reset();
    if (thread_.joinable()) thread_.join();
  }
  void Start() {
    thread_ = std::thread([this] {
      end_ = ServeRank(options_, common::UniqueFd(::dup(shared_.fd())), *own_,
                       [this] { orphaned_.Notify(); });
    });
  }
  absl::Status End() {
    thread_.join();
    return end_;
  }
  RankMessage Next() { return rank0_->Receive(kLong).value(); }
  // A data plane of as many slots as the plan has, or of another number.
  void MakePlane(uint32_t more_slots) {
    const ComputeBackend backend = CreateCpuBackend(options_).value();
    const MemoryPlan plan =
        PlanEngine(
            options_, NamedModelShape("tiny").value(), backend,
            IndexSettings(options_, backend.kv_format),
            {.available_bytes = kMemory, .weight_bytes = 1 << 20, .arena_pages = kArenaPages})
            .value();
    const uint32_t num_slots = plan.num_slots + more_slots;
    const DataPlaneHeader header =
        MakeDataPlaneHeader(num_slots, DataPlane::LogCapacityFor(num_slots),
                            DataPlane::RequestCapacityFor(num_slots), kArenaPages);
    const uint64_t bytes = (header.total_bytes + 4095) / 4096 * 4096;
    plane_ = common::SealedMemory::Create("plane", bytes, 1).value();
    DataPlane::Format(plane_.bytes(), header);
  }
  void HandOver(uint32_t arena_pages, uint32_t more_slots = 0) {
    arena_ = common::SealedMemory::Create("arena", uint64_t{kArenaPages} * kPageBytes, 1).value();
    MakePlane(more_slots);
    const std::vector<int> fds = {arena_.fd(), plane_.fd()};
    ASSERT_TRUE(rank0_
                    ->Send(RankMessageType::kMemory,
                           EncodeSharedPlan({.available_bytes = kMemory,
                                             .weight_bytes = 1 << 20,
                                             .arena_pages = arena_pages}),
                           kLong, fds)
                    .ok());
  }

  ServedEngineOptions options_;
  common::SealedMemory arena_, plane_, shared_;
  std::unique_ptr<RankChannel> rank0_, own_;
  absl::Notification orphaned_;
  absl::Status end_;
  std::thread thread_;
};

TEST_F(ServedRankTest, IsReadyForCommandsAndEndsWhenItIsTold) {
  Start();
  RankMessage message = Next();
  ASSERT_EQ(message.type, RankMessageType::kHello);
  const RankHello hello = DecodeHello(message.payload).value();
  EXPECT_EQ(hello.rank, 1u);
  EXPECT_EQ(hello.available_bytes, kMemory);
  EXPECT_GT(hello.weight_bytes, 0u);
  EXPECT_FALSE(hello.fingerprint.empty());
  HandOver(kArenaPages);
  message = Next();
  ASSERT_EQ(message.type, RankMessageType::kReady) << DecodeFailure(message.payload);
  EXPECT_THAT(DecodeReady(message.payload).value(), testing::HasSubstr("2048 tokens"));
  StepCommand command;
  command.open.push_back({.id = 1, .prompt = {1, 2}, .total_tokens = 5});
  ASSERT_TRUE(rank0_
                  ->Send(RankMessageType::kCommand,
                         EncodeRankCommand({}, EncodeCommand(command, Drawing::kElsewhere).value()),
                         kLong)
                  .ok());
  EXPECT_EQ(Next().type, RankMessageType::kAnswer);
  ASSERT_TRUE(rank0_->Send(RankMessageType::kEnd, "", kLong).ok());
  EXPECT_TRUE(End().ok()) << end_;
}

TEST_F(ServedRankTest, WhatCannotBeHandedOverIsTold) {
  Start();
  ASSERT_EQ(Next().type, RankMessageType::kHello);
  HandOver(kArenaPages + 1);
  const RankMessage message = Next();
  ASSERT_EQ(message.type, RankMessageType::kFailure);
  EXPECT_EQ(DecodeFailure(message.payload), End());
  EXPECT_THAT(std::string(end_.message()), testing::HasSubstr("arena"));
}

TEST_F(ServedRankTest, ADataPlaneOfAnotherSizeIsTold) {
  Start();
  ASSERT_EQ(Next().type, RankMessageType::kHello);
  HandOver(kArenaPages, 1);
  const RankMessage message = Next();
  ASSERT_EQ(message.type, RankMessageType::kFailure);
  EXPECT_EQ(DecodeFailure(message.payload), End());
  EXPECT_THAT(std::string(end_.message()), testing::HasSubstr("slots"));
}

TEST_F(ServedRankTest, SharedMemoryThatIsNoneIsTold) {
  shared_ = common::SealedMemory::Create("shared", 4096, 1).value();
  Start();
  ASSERT_EQ(Next().type, RankMessageType::kFailure);
  EXPECT_EQ(End().code(), absl::StatusCode::kInvalidArgument) << end_;
}

TEST_F(ServedRankTest, AModelThatIsNotThereIsTold) {
  options_.load_format = "auto";
  options_.model_folder = "/nonexistent/model";
  Start();
  const RankMessage message = Next();
  ASSERT_EQ(message.type, RankMessageType::kFailure);
  EXPECT_TRUE(absl::IsNotFound(DecodeFailure(message.payload)));
  EXPECT_TRUE(absl::IsNotFound(End()));
}

TEST_F(ServedRankTest, IsToldThatItIsOrphaned) {
  Start();
  ASSERT_EQ(Next().type, RankMessageType::kHello);
  rank0_.reset();
  orphaned_.WaitForNotification();
  EXPECT_FALSE(End().ok());
}

}  // namespace
}  // namespace retroinfer
