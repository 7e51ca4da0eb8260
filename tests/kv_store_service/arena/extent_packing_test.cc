#include "kv_store_service/arena/extent_packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer::kvstore {
namespace {

using testing::ElementsAre;

TEST(ExtentPackingTest, LongestFirstIntoTheShortestRunThatHasRoom) {
  const std::vector<uint32_t> counts = {3, 10, 4};
  ExtentPacking packing(counts, 10);
  EXPECT_EQ(packing.needed_pages(), 17u);
  EXPECT_EQ(packing.shortest(), 3u);
  const std::vector<PageRun> runs = {{0, 4}, {20, 13}};
  EXPECT_TRUE(packing.Fits(runs));
  const auto extents = packing.Place(runs);
  ASSERT_TRUE(extents.has_value());
  // The large one at the low end of its run, the small one at the high end.
  EXPECT_THAT(*extents, ElementsAre(PageRun{30, 3}, PageRun{20, 10}, PageRun{0, 4}));
}

TEST(ExtentPackingTest, LargeOnesBeginAtMultiplesOfTheirLengthIfTheRunIsLongEnough) {
  const std::vector<uint32_t> counts = {10, 10, 2};
  ExtentPacking packing(counts, 10);
  EXPECT_THAT(*packing.Place(std::vector<PageRun>{{7, 25}}),
              ElementsAre(PageRun{10, 10}, PageRun{20, 10}, PageRun{30, 2}));
  EXPECT_THAT(*packing.Place(std::vector<PageRun>{{7, 24}}),
              ElementsAre(PageRun{7, 10}, PageRun{17, 10}, PageRun{29, 2}));
}

TEST(ExtentPackingTest, TriesOtherWaysOnlyIfAsked) {
  const std::vector<uint32_t> counts = {4, 4, 3, 3, 3, 3};
  ExtentPacking packing(counts, 100);
  const std::vector<PageRun> runs = {{0, 10}, {11, 10}};
  EXPECT_FALSE(packing.Fits(runs));
  EXPECT_FALSE(packing.Place(runs).has_value());
  EXPECT_TRUE(packing.Fits(runs, true));
  EXPECT_TRUE(packing.Place(runs, true).has_value());
  EXPECT_FALSE(packing.Fits(std::vector<PageRun>{{0, 10}, {11, 9}}, true));
}

TEST(ExtentPackingTest, ManyRunsAndManyExtents) {
  std::vector<uint32_t> counts(3000, 5);
  std::vector<PageRun> runs;
  for (uint32_t i = 0; i < 3000; ++i) runs.push_back({i * 7, 6});
  ExtentPacking packing(counts, 100);
  EXPECT_TRUE(packing.Fits(runs));
  EXPECT_TRUE(packing.Place(runs).has_value());
  runs.pop_back();
  EXPECT_FALSE(packing.Fits(runs, true));
}

TEST(ExtentPackingTest, NothingFitsAnywhere) {
  ExtentPacking packing({}, 10);
  EXPECT_TRUE(packing.Fits({}));
  EXPECT_TRUE(packing.Place({})->empty());
}

}  // namespace
}  // namespace retroinfer::kvstore
