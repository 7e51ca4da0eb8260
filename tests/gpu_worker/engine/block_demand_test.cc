#include "gpu_worker/engine/block_demand.h"

#include <gtest/gtest.h>

#include "gpu_worker/measuring/synthetic/forwarding_policy.h"
#include "tests/gpu_worker/measuring/synthetic/fake_policy.h"

namespace retroinfer {
namespace {

// A dense block for each token, and one of the index for each that is to come.
class Blockwise final : public ForwardingPolicy {
 public:
  explicit Blockwise(AttentionPolicy& policy) : ForwardingPolicy(policy) {}
  KvBlocks NeedWhile(const AttentionSettings&, const KvGrowth& growth) const override {
    EXPECT_LE(growth.prompt_tokens, growth.from);
    EXPECT_LE(growth.from, growth.to);
    EXPECT_LE(growth.to, growth.total_tokens);
    return {.dense = static_cast<int32_t>(growth.to),
            .meta = static_cast<int32_t>(growth.to - growth.from)};
  }
};

class BlockDemandTest : public testing::Test {
 protected:
  test_support::FakePolicy fake_;
  Blockwise policy_{fake_};
};

TEST_F(BlockDemandTest, BeginsWithItsPromptAndAFewTokens) {
  BlockDemand demand(policy_, {}, 1000, 4096, false);
  EXPECT_EQ(demand.target(), (KvBlocks{1000 + BlockDemand::kAtFirst, BlockDemand::kAtFirst}));
  EXPECT_EQ(demand.peak(), (KvBlocks{5096, 4096}));
  EXPECT_EQ(demand.FreeTokens(0), 0);
  demand.OnGranted();
  EXPECT_EQ(demand.FreeTokens(0), BlockDemand::kAtFirst);
  EXPECT_EQ(demand.FreeTokens(100), BlockDemand::kAtFirst - 100);
}

TEST_F(BlockDemandTest, AsksBeforeItsRoomIsUsedUpAndOnlyOnce) {
  BlockDemand demand(policy_, {}, 1000, 4096, false);
  demand.OnGranted();
  const int64_t last = BlockDemand::kAtFirst - BlockDemand::kAhead;
  EXPECT_FALSE(demand.OnGrown(last));
  EXPECT_TRUE(demand.OnGrown(last + 1));
  EXPECT_EQ(demand.target().dense, 1000 + last + 1 + 2 * BlockDemand::kAhead);
  EXPECT_EQ(demand.peak().meta, 4096 - last - 1) << "from here on";
  EXPECT_FALSE(demand.OnGrown(last + 2)) << "it has asked";
  EXPECT_EQ(demand.FreeTokens(BlockDemand::kAtFirst), 0);
  demand.OnGranted();
  EXPECT_EQ(demand.FreeTokens(BlockDemand::kAtFirst), BlockDemand::kAhead + 1);
}

TEST_F(BlockDemandTest, ALongerAnswerAsksBehindWhatItHolds) {
  BlockDemand demand(policy_, {}, 1000, 300, false);
  demand.OnGranted();
  EXPECT_TRUE(demand.OnGrown(250));
  demand.OnGranted();
  EXPECT_EQ(demand.FreeTokens(290), 10);
  demand.Lengthen(290, 2000);
  EXPECT_EQ(demand.peak().dense, 3000);
  EXPECT_EQ(demand.target().dense, 1290 + BlockDemand::kAhead);
  EXPECT_EQ(demand.FreeTokens(290), 10) << "nothing is granted yet";
  demand.OnGranted();
  EXPECT_EQ(demand.FreeTokens(290), BlockDemand::kAhead);
  // One that holds enough already keeps it.
  BlockDemand early(policy_, {}, 1000, 600, false);
  early.OnGranted();
  early.Lengthen(10, 2000);
  EXPECT_EQ(early.target().dense, 1000 + BlockDemand::kAtFirst);
}

TEST_F(BlockDemandTest, NeverAsksForMoreThanItMayNeed) {
  BlockDemand demand(policy_, {}, 1000, 300, false);
  demand.OnGranted();
  EXPECT_TRUE(demand.OnGrown(250));
  EXPECT_EQ(demand.target().dense, 1300);
  demand.OnGranted();
  EXPECT_FALSE(demand.OnGrown(299));
  EXPECT_EQ(demand.FreeTokens(299), 1);
  BlockDemand small(policy_, {}, 1000, 3, false);
  EXPECT_EQ(small.target().dense, 1003);
  EXPECT_EQ(BlockDemand(policy_, {}, 7, 0, false).target().dense, 7);
}

TEST_F(BlockDemandTest, WhoComesBackBeginsWhereItWas) {
  BlockDemand demand(policy_, {}, 1000, 4096, false);
  demand.OnGranted();
  demand.OnReleased(700);
  EXPECT_EQ(demand.target(), (KvBlocks{1700 + BlockDemand::kAtFirst, BlockDemand::kAtFirst}));
  EXPECT_EQ(demand.peak(), (KvBlocks{5096, 3396}));
  demand.OnGranted();
  EXPECT_EQ(demand.FreeTokens(700), BlockDemand::kAtFirst);
}

TEST_F(BlockDemandTest, OneThatTakesAllNeverAsks) {
  BlockDemand demand(policy_, {}, 1000, 4096, true);
  EXPECT_EQ(demand.target(), demand.peak());
  demand.OnGranted();
  EXPECT_FALSE(demand.OnGrown(4095));
  EXPECT_EQ(demand.FreeTokens(4095), 1);
}

}  // namespace
}  // namespace retroinfer
