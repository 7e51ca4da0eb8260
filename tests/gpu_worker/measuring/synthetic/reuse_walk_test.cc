#include "gpu_worker/measuring/synthetic/reuse_walk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace retroinfer {
namespace {

std::vector<uint32_t> Order(size_t cells) {
  std::vector<uint32_t> order(cells);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

TEST(ReuseWalkTest, StepsHaveTheirNumberOfCellsEachOnce) {
  const RecordedReuse& reuse = RecordedReuses().front();
  for (const auto& [cells, of_step] :
       std::vector<std::pair<size_t, size_t>>{{1, 1}, {4, 4}, {7, 3}, {64, 63}, {1000, 18}}) {
    SCOPED_TRACE(cells);
    ReuseWalk walk(reuse, reuse.heads[0], Order(cells), of_step, 0, 1);
    for (int step = 0; step < 1200; ++step) {
      const auto now = walk.Next();
      const std::set<uint32_t> once(now.begin(), now.end());
      ASSERT_EQ(once.size(), of_step);
      ASSERT_LT(*once.rbegin(), cells);
    }
  }
}

TEST(ReuseWalkTest, CellsAreReadFirstInTheOrderGiven) {
  const RecordedReuse& reuse = RecordedReuses().front();
  ReuseWalk walk(reuse, reuse.heads[3], Order(500), 10, 0, 1);
  uint32_t next = 0;
  for (int step = 0; step < 300; ++step) {
    for (const uint32_t cell : walk.Next()) {
      EXPECT_LE(cell, next);
      next = std::max(next, cell + 1);
    }
  }
  EXPECT_LT(next, 400u);
}

TEST(ReuseWalkTest, WhatStaysIsWhatTheTraceSays) {
  constexpr size_t kOfStep = 20, kSteps = 2000;
  const RecordedReuse& reuse = RecordedReuses().front();
  for (const HeadReuse& head : reuse.heads) {
    ReuseWalk walk(reuse, head, Order(1000), kOfStep, 0, 7);
    std::set<uint32_t> last;
    double stayed = 0;
    for (size_t step = 0; step < kSteps; ++step) {
      const auto now = walk.Next();
      if (step > kSteps / 2) {
        stayed += static_cast<double>(
            std::count_if(now.begin(), now.end(), [&](uint32_t c) { return last.contains(c); }));
      }
      last = std::set<uint32_t>(now.begin(), now.end());
    }
    EXPECT_NEAR(stayed / (kOfStep * (kSteps / 2 - 1)), head.at_depth[0] / 1e4, 0.015);
  }
}

}  // namespace
}  // namespace retroinfer
