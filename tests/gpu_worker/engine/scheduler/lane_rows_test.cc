#include "gpu_worker/engine/scheduler/lane_rows.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

LaneDescription Lane(std::vector<LaneDescription::Member> members) {
  return {.max_tokens = 1 << 20, .is_free = false, .members = std::move(members)};
}

TEST(LaneRowsTest, ARowSeesThoseBeforeItInItsOwnPrompt) {
  // Two prompts of 3 and 2 rows: depths 0 1 2, 0 1.
  const LaneDescription lane = Lane({{.id = 1, .rows = 3}, {.id = 2, .rows = 2}});
  EXPECT_EQ(GroupRows(lane), 5);
  EXPECT_EQ(WorkOfRows(lane, 0, 5).pass_depth, 4);
  EXPECT_EQ(WorkOfRows(lane, 2, 2).pass_depth, 2);
  EXPECT_EQ(WorkOfRows(lane, 2, 2).pass_rows, 2);
  EXPECT_EQ(WorkOfRows(lane, 2, 2).passes, 1);
}

TEST(LaneRowsTest, CachedTokensAreBehindTheSink) {
  // Positions 0 1 2 3, 104 105.
  const LaneDescription lane = Lane({{.id = 1, .rows = 6, .cached_tokens = 100}});
  EXPECT_EQ(WorkOfRows(lane, 0, 4).pass_depth, 6);
  EXPECT_EQ(WorkOfRows(lane, 0, 4).cached, 0);
  EXPECT_EQ(WorkOfRows(lane, 0, 6).pass_depth, 6 + 104 + 105);
  EXPECT_EQ(WorkOfRows(lane, 0, 6).cached, 100);
  EXPECT_EQ(WorkOfRows(lane, 5, 1).pass_depth, 105);
  EXPECT_EQ(WorkOfRows(lane, 5, 1).cached, 0) << "they were read before";
}

TEST(LaneRowsTest, PassesAddUpToWhatIsLeft) {
  constexpr uint32_t kLayers = 3;
  constexpr int64_t kMaxRows = 4;
  LaneDescription lane =
      Lane({{.id = 1, .rows = 7}, {.id = 2, .rows = 6, .cached_tokens = 50}, {.id = 3, .rows = 1}});
  const Work whole = WorkLeft(lane, kLayers, kMaxRows);
  Work sum;
  while (lane.layer < kLayers) {
    const Work left = WorkLeft(lane, kLayers, kMaxRows);
    EXPECT_EQ(left.pass_rows + sum.pass_rows, whole.pass_rows);
    EXPECT_EQ(left.pass_depth + sum.pass_depth, whole.pass_depth);
    EXPECT_EQ(left.cached + sum.cached, whole.cached);
    EXPECT_EQ(left.passes + sum.passes, whole.passes);
    const int64_t rows = std::min(kMaxRows, GroupRows(lane) - lane.next_row);
    sum += WorkOfRows(lane, lane.next_row, rows);
    lane.next_row += rows;
    if (lane.next_row < GroupRows(lane)) continue;
    lane.next_row = 0;
    ++lane.layer;
  }
  EXPECT_EQ(sum.cached, 150);
}

TEST(LaneRowsTest, ARequestBecomesTheRowsThatItHasToCompute) {
  const LaneDescription::Member member =
      MemberOf({.id = 7, .arrival = 2, .priority = -1, .prompt_tokens = 100, .cached_tokens = 60});
  EXPECT_EQ(member.id, 7u);
  EXPECT_EQ(member.rows, 40);
  EXPECT_EQ(member.cached_tokens, 60);
  EXPECT_EQ(member.priority, -1);
}

}  // namespace
}  // namespace retroinfer
