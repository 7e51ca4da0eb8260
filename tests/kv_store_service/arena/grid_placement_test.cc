#include "kv_store_service/arena/grid_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer::kvstore {
namespace {

using testing::ElementsAre;

constexpr uint64_t kAnyRank = UINT64_MAX - 1;

// An arena of 45 pages: cells of 10 at 0, 10, 20 and 30, and 5 pages behind them.
std::optional<std::vector<PageRun>> Place(std::vector<ArenaPiece> pieces,
                                          std::vector<uint32_t> counts, uint64_t limit = kAnyRank,
                                          uint64_t limit_together = 0) {
  uint64_t visits = 0;
  const GridPlacement grid{
      .num_pages = 45, .large_pages = 10, .limit = limit, .limit_together = limit_together};
  auto extents = grid.Place(pieces, counts, &visits);
  EXPECT_GE(visits, extents.has_value() ? pieces.size() : 0);
  return extents;
}

TEST(GridPlacementTest, LargeOnesFromTheBeginningAndSmallOnesFromTheEnd) {
  EXPECT_THAT(
      *Place({{{0, 45}, 0}}, {2, 10, 2, 2, 10}),
      ElementsAre(PageRun{43, 2}, PageRun{0, 10}, PageRun{41, 2}, PageRun{39, 2}, PageRun{10, 10}));
}

TEST(GridPlacementTest, TheLowestRanksGo) {
  const std::vector<ArenaPiece> pieces = {{{0, 9}, 7},   {{9, 1}, 0},  {{10, 10}, 3},
                                          {{20, 10}, 9}, {{30, 5}, 4}, {{35, 5}, 5}};
  EXPECT_THAT(*Place(pieces, {10, 10}), ElementsAre(PageRun{10, 10}, PageRun{30, 10}));
  EXPECT_FALSE(Place(pieces, {10, 10}, 4).has_value());
  EXPECT_FALSE(Place(pieces, {10, 10, 10, 10, 10}).has_value());
}

TEST(GridPlacementTest, SmallOnesStayTogetherWhereThatIsCheapEnough) {
  // In use: 42 to 44, and 22 and 23, so that the cell at 20 is none for large ones.
  const std::vector<ArenaPiece> pieces = {{{0, 10}, 1}, {{10, 10}, 2}, {{20, 2}, 8},
                                          {{24, 6}, 6}, {{30, 10}, 3}, {{40, 2}, 9}};
  EXPECT_THAT(*Place(pieces, {2}, kAnyRank, 6), ElementsAre(PageRun{27, 2}));
  // The first one opens a cell, the second one stays in it.
  EXPECT_THAT(*Place(pieces, {2, 2}, kAnyRank, 5), ElementsAre(PageRun{7, 2}, PageRun{5, 2}));
}

TEST(GridPlacementTest, LongerOnesAndMoreThanThereAreSlotsAreNotForIt) {
  EXPECT_FALSE(Place({{{0, 45}, 0}}, {11}).has_value());
  EXPECT_FALSE(Place({{{0, 45}, 0}}, std::vector<uint32_t>(23, 2)).has_value());
  EXPECT_TRUE(Place({{{0, 45}, 0}}, std::vector<uint32_t>(22, 2)).has_value());
}

TEST(GridPlacementTest, TwoSmallLengthsDoNotOverlap) {
  const auto extents = *Place({{{0, 45}, 0}}, {3, 2, 3, 2, 2});
  for (size_t i = 0; i < extents.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_TRUE(extents[i].end() <= extents[j].first || extents[j].end() <= extents[i].first);
    }
  }
}

TEST(GridPlacementTest, SmallOnesTakeGapsThatHaveRoomForOne) {
  // In use: 0 to 5, 10 to 15 and 20 to 27. The cell at 30 is free.
  const std::vector<ArenaPiece> pieces = {{{6, 4}, 0}, {{16, 4}, 0}, {{28, 17}, 0}};
  EXPECT_THAT(*Place(pieces, {3, 3, 10}, 0),
              ElementsAre(PageRun{7, 3}, PageRun{17, 3}, PageRun{30, 10}));
  EXPECT_THAT(*Place(pieces, {4, 10, 2, 3}, 0),
              ElementsAre(PageRun{6, 4}, PageRun{30, 10}, PageRun{28, 2}, PageRun{17, 3}));
  // A gap for two is none, what can be given up is none, and the cell that goes to a large one
  // neither.
  EXPECT_THAT(*Place({{{6, 4}, 0}, {{40, 5}, 0}}, {2}, 0), ElementsAre(PageRun{43, 2}));
  EXPECT_THAT(*Place({{{7, 3}, 5}, {{40, 5}, 0}}, {3}), ElementsAre(PageRun{42, 3}));
  EXPECT_THAT(*Place({{{20, 10}, 1}, {{30, 3}, 0}, {{33, 7}, 2}, {{40, 5}, 0}}, {10, 10, 3}),
              ElementsAre(PageRun{20, 10}, PageRun{30, 10}, PageRun{42, 3}));
}

}  // namespace
}  // namespace retroinfer::kvstore
