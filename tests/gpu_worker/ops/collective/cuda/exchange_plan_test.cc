// What kernels of collectives take for granted of their plans, for every number of ranks and sizes
// on both sides of each limit.
#include "gpu_worker/ops/collective/cuda/exchange_plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "gpu_worker/ops/collective/rank_memory.h"

namespace retroinfer::cuda {
namespace {

// Around powers of two up to those of matrices of some GB.
std::vector<int64_t> Counts() {
  std::vector<int64_t> counts;
  for (int64_t power = 1; power <= int64_t{1} << 28; power *= 2) {
    for (const int64_t more : {-1, 0, 1, 7}) {
      if (power + more > 0) counts.push_back(power + more);
    }
  }
  return counts;
}

TEST(ExchangePlanTest, OneShotHasRoomForAllChunksAtOnce) {
  for (const int64_t count : Counts()) {
    for (int ranks = 2; ranks <= kMostRanks; ++ranks) {
      if (!TakesOneShot(count, ranks)) continue;
      const SharePlan plan = PlanOneShot(count);
      ASSERT_LE(plan.size, kFirstChunks) << count;
      ASSERT_LE(plan.blocks, kFirstBlocks) << count;
      ASSERT_GE(plan.size * plan.blocks, count) << "chunks without a block";
      ASSERT_LT(plan.size * (plan.blocks - 1), count) << "a block without chunks, of " << count;
    }
  }
}

TEST(ExchangePlanTest, TwoShotsHaveRoomForThePartsOfASlice) {
  for (const int64_t count : Counts()) {
    for (int ranks = 2; ranks <= kMostRanks; ++ranks) {
      const TwoShotPlan plan = PlanTwoShot(count, ranks);
      const int64_t slice = int64_t{ranks} << plan.part_shift;
      ASSERT_LE(slice, kSecondChunks) << count << " chunks, " << ranks << " ranks";
      ASSERT_LE(plan.blocks, kExchangeBlocks);
      ASSERT_LT(slice * (plan.blocks - 1), count) << "a block that never meets the others";
      // Either the blocks have all at once, or as many as there are work with the largest parts.
      if (slice * plan.blocks < count) {
        EXPECT_EQ(plan.blocks, kExchangeBlocks) << count;
        EXPECT_GT(2 * slice, kSecondChunks) << count << " chunks, " << ranks << " ranks";
      }
    }
  }
}

TEST(ExchangePlanTest, GatheredSlicesHaveRoomInATurn) {
  for (const int64_t most : Counts()) {
    const SharePlan plan = PlanGather(most);
    ASSERT_LE(plan.size * static_cast<int64_t>(sizeof(float)), kFirstBytes) << most;
    ASSERT_LE(plan.blocks, kFirstBlocks) << most;
    ASSERT_LT(plan.size * (plan.blocks - 1), most) << "a block that never meets the others";
    if (plan.size * plan.blocks < most) {
      EXPECT_EQ(plan.blocks, kFirstBlocks) << most;
    }
  }
}

// A row that is given has its number of the turn beside each 4 bytes.
TEST(ExchangePlanTest, PlacesOfAPieceDoNotOverlap) {
  using At = PieceLayout;
  EXPECT_GE(At::kTurns - At::kFlags, sizeof(uint32_t) * kExchangeBlocks * kMostRanks);
  EXPECT_GE(At::kFirst - At::kTurns, sizeof(uint32_t) * kExchangeBlocks);
  EXPECT_GE(At::kParts - At::kFirst, 2u * kFirstBlocks * kFirstBytes);
  EXPECT_GE(At::kSums - At::kParts, size_t{kExchangeBlocks} * kSecondBytes);
  EXPECT_GE(At::kHostBytes - At::kSums, size_t{kExchangeBlocks} * kSecondBytes);
  EXPECT_GE(At::kRows, At::kHostBytes);
  EXPECT_GE(At::kBytes - At::kRows, 2u * kRowBlocks * kMostRanks * 2 * kRowBytes);
  for (const size_t at : {At::kFirst, At::kParts, At::kSums, At::kRows}) {
    EXPECT_EQ(at % kExchangeChunkBytes, 0u) << "chunks that no thread can move at once";
  }
  EXPECT_LE(At::kHostBytes, RankMemory::kPieceBytes);
  EXPECT_LE(kRowBlocks, kFirstBlocks) << "rows that are not given are shown";
}

}  // namespace
}  // namespace retroinfer::cuda
