#include "text/tokenizer/special_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer {
namespace {

using R = SpecialRuns::Run;
using testing::ElementsAre;

TEST(SpecialRunsTest, NeighboursAreMerged) {
  SpecialRuns runs(3, true);
  runs.Append(0, false);
  runs.Append(2, true);
  runs.Append(4, false);
  EXPECT_THAT(runs.runs(), ElementsAre(R{5, true}, R{9, false}));
  EXPECT_EQ(runs.size(), 9u);
  EXPECT_EQ(SpecialRuns().size(), 0u);
}

TEST(SpecialRunsTest, AllOrNothing) {
  SpecialRuns runs(2, false);
  runs.Append(3, true);
  runs.Append(2, false);
  EXPECT_TRUE(runs.Allow(2, 5));
  EXPECT_TRUE(runs.Allow(3, 4));
  EXPECT_FALSE(runs.Allow(1, 5));
  EXPECT_FALSE(runs.Allow(2, 6));
  EXPECT_FALSE(runs.Allow(0, 2));
  EXPECT_FALSE(runs.Allow(6, 9));
  EXPECT_EQ(runs.NextAllowed(0), 2u);
  EXPECT_EQ(runs.NextAllowed(3), 3u);
  EXPECT_EQ(runs.NextAllowed(5), 7u);
  EXPECT_EQ(runs.NextAllowed(99), 7u);
}

TEST(SpecialRunsTest, Parts) {
  SpecialRuns runs(2, false);
  runs.Append(3, true);
  runs.Append(2, false);
  EXPECT_THAT(runs.Part(1, 6).runs(), ElementsAre(R{1, false}, R{4, true}, R{5, false}));
  EXPECT_THAT(runs.Part(2, 5).runs(), ElementsAre(R{3, true}));
  EXPECT_TRUE(runs.Part(4, 4).runs().empty());
}

}  // namespace
}  // namespace retroinfer
