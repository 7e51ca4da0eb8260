#include "gpu_worker/scheduler/block_growth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu_worker/scheduler/blocked_requests.h"

namespace retroinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class BlockGrowthTest : public testing::Test {
 protected:
  BlockGrowthTest() {
    input_.now = 100;
    input_.weights = {1};
  }
  // A decoding request that has 10 blocks, asks for 10 more, and will need no others.
  RequestDescription& Add(uint64_t id) {
    input_.requests.push_back({.id = id,
                               .phase = RequestPhase::kDecoding,
                               .dense_blocks = 10,
                               .more_dense_blocks = 10,
                               .asked_dense_blocks = 10,
                               .free_tokens = 0,
                               .can_decode = true,
                               .decoding_since = 100 - static_cast<double>(id),
                               .tokens_left = 100});
    return input_.requests.back();
  }
  std::vector<uint64_t> Grow(int64_t free_dense_blocks, const StepPlan& so_far = {}) {
    input_.free_dense_blocks = free_dense_blocks;
    lengths_.Update(input_);
    MemoryBank bank(input_, lengths_);
    StepPlan plan = so_far;
    growth_.Plan(input_, bank, plan);
    return plan.grow;
  }

  TenantShares shares_;
  PreemptingRequests preempting_{shares_};
  BlockGrowth growth_{preempting_};
  OutputLengths lengths_;
  SchedulerInput input_;
};

TEST_F(BlockGrowthTest, AHigherClassGrowsFirstThenTheOneThatHasDecodedLongest) {
  Add(1);
  Add(2);
  Add(3).priority = 1;
  EXPECT_THAT(Grow(10), ElementsAre(2)) << "it has decoded longest";
  EXPECT_THAT(Grow(20), ElementsAre(2, 1));
  input_.requests[2].priority = -1;
  EXPECT_THAT(Grow(10), ElementsAre(3));
}

TEST_F(BlockGrowthTest, OneThatIsBeingSuspendedDoesNotGrow) {
  Add(1);
  Add(2);
  StepPlan plan;
  plan.suspend = {2};
  EXPECT_THAT(Grow(10, plan), ElementsAre(1));
}

TEST_F(BlockGrowthTest, AStallBeginsWhenBlocksLackAndEndsWithThem) {
  Add(1);
  EXPECT_THAT(Grow(0), IsEmpty());
  EXPECT_EQ(growth_.StalledSince(input_.requests[0]), 100);
  input_.now = 101;
  Grow(0);
  EXPECT_EQ(growth_.StalledSince(input_.requests[0]), 100);
  EXPECT_THAT(Grow(10), ElementsAre(1));
  EXPECT_EQ(growth_.StalledSince(input_.requests[0]), std::nullopt);
  input_.requests[0].free_tokens = 3;
  Grow(0);
  EXPECT_EQ(growth_.StalledSince(input_.requests[0]), std::nullopt) << "it can decode yet";
}

TEST_F(BlockGrowthTest, ANewcomerIsBehindAStallOfItsClassThatLastsAndNeedsTheSameBlocks) {
  Add(1);
  Grow(0);
  RequestDescription newcomer{.id = 5, .phase = RequestPhase::kWaiting, .dense_blocks = 1};
  const double later = 100 + BlockedRequests::kPatience;
  EXPECT_FALSE(growth_.IsBehindStalled(newcomer, later - 0.1));
  EXPECT_TRUE(growth_.IsBehindStalled(newcomer, later));
  newcomer.priority = -1;
  EXPECT_FALSE(growth_.IsBehindStalled(newcomer, later)) << "of a higher class";
  newcomer.priority = 0;
  newcomer.dense_blocks = 0;
  newcomer.meta_blocks = 1;
  EXPECT_FALSE(growth_.IsBehindStalled(newcomer, later)) << "takes blocks of the other kind";
  newcomer.dense_blocks = 1;
  preempting_.Add(newcomer, later);
  EXPECT_FALSE(growth_.IsBehindStalled(newcomer, later)) << "others were preempted for it";
}

TEST_F(BlockGrowthTest, BlocksOfPreemptedRequestsAreForTheOneTheyWerePreemptedFor) {
  // Requests of this kind have ended after a token each: few further blocks are expected.
  for (uint64_t id = 100; id < 120; ++id) {
    input_.requests = {
        {.id = id, .phase = RequestPhase::kDecoding, .tokens_left = 99, .tokens_generated = 1}};
    lengths_.Update(input_);
  }
  input_.requests.clear();
  Add(1).priority = 1;
  input_.requests.push_back({.id = 5, .phase = RequestPhase::kWaiting, .dense_blocks = 10});
  EXPECT_THAT(Grow(15), ElementsAre(1));
  preempting_.Add(input_.requests[1], input_.now);
  EXPECT_THAT(Grow(15), IsEmpty());
  EXPECT_THAT(Grow(20), ElementsAre(1)) << "there are blocks for both";
}

}  // namespace
}  // namespace retroinfer
