#include "gpu_worker/scheduler/lane_rows.h"

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

// Exact and sparse rows are works of their own, so that the cost of the one is not learned from the
// other.
TEST(LaneRowsTest, SparseRowsCountAsThose) {
  // Positions 0 to 3, 104 to 109; sparse from 106 on.
  const LaneDescription lane =
      Lane({{.id = 1, .rows = 10, .cached_tokens = 100, .sparse_from = 106}});
  const Work work = WorkOfRows(lane, 0, 10);
  EXPECT_EQ(work.pass_rows, 10);
  EXPECT_EQ(work.pass_depth, 6 + 104 + 105);
  EXPECT_EQ(work.pass_reach, 4 + 106);
  EXPECT_EQ(work.sparse_depth, 106 + 107 + 108 + 109);
  EXPECT_EQ(WorkOfRows(lane, 7, 3).pass_depth, 0);
  EXPECT_EQ(WorkOfRows(lane, 7, 3).pass_reach, 0);
  EXPECT_EQ(WorkOfRows(lane, 7, 3).sparse_depth, 107 + 108 + 109);
  EXPECT_EQ(WorkLeft(lane, 3, 64).sparse_depth, 3 * work.sparse_depth);
  const LaneDescription exact = Lane({{.id = 1, .rows = 10, .cached_tokens = 100}});
  EXPECT_EQ(WorkOfRows(exact, 0, 10).sparse_depth, 0);
}

TEST(LaneRowsTest, PassesCutNoUnitOfASparseRun) {
  LaneDescription lane = Lane({});
  lane.runs = {{.rows = 100},
               {.rows = 4, .sparse_from = 0},
               {.rows = 300, .depth = 4 + 640, .sparse_from = 0}};
  const auto units = [&](int64_t next_row, int64_t rows) {
    lane.next_row = next_row;
    return WholeUnits(lane, rows);
  };
  EXPECT_EQ(units(0, 64), 64) << "exact rows are cut anywhere";
  EXPECT_EQ(units(0, 102), 102) << "the sink is in no unit";
  EXPECT_EQ(units(0, 150), 104);
  EXPECT_EQ(units(0, 200), 168);
  EXPECT_EQ(units(104, 64), 64);
  EXPECT_EQ(units(104, 200), 192);
  EXPECT_EQ(units(104, 10), 64) << "no less than a unit";
  EXPECT_EQ(units(360, 10), 44) << "the prompt ends within the unit";
  EXPECT_EQ(units(104, 1000), 300);
  lane.runs = {{.rows = 60}, {.rows = 300, .depth = 4 + 640 + 2, .sparse_from = 0}};
  EXPECT_EQ(units(0, 64), 60) << "the run begins within a unit";
  EXPECT_EQ(units(0, 200), 60 + 126);
  EXPECT_EQ(units(60, 10), 62);
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

// Three questions on 100 cached tokens that go on with 20 common ones, and one prompt of its own.
std::vector<LaneDescription::Member> PrefixGroup() {
  const auto question = [](uint64_t id, int64_t rows) {
    return LaneDescription::Member{
        .id = id, .rows = rows, .cached_tokens = 100, .prefix = 5, .common_tokens = 124};
  };
  return {question(1, 34), {.id = 2, .rows = 7}, question(3, 44), question(4, 24)};
}

TEST(LaneRowsTest, WhatAPrefixGroupHasInCommonIsCountedOnce) {
  const LaneDescription lane = Lane(PrefixGroup());
  // 4 + 20 common rows; 10 and 20 of their own, the last one has none; and 7.
  EXPECT_EQ(GroupRows(lane), 24 + 10 + 20 + 7);
  EXPECT_EQ(WorkOfRows(lane, 0, GroupRows(lane)).cached, 100);
  EXPECT_EQ(WorkOfRows(lane, 24, 1).pass_depth, 124);
  EXPECT_EQ(WorkOfRows(lane, 34, 1).pass_depth, 124);
}

TEST(LaneRowsTest, OneThatHasMoreInTheCacheReadsTheRest) {
  std::vector<LaneDescription::Member> members = PrefixGroup();
  members.pop_back();
  members[2].cached_tokens = 130;  // rows from 134 on
  members[2].rows = 14;
  const LaneDescription lane = Lane(members);
  EXPECT_EQ(GroupRows(lane), 24 + 10 + 10 + 7);
  EXPECT_EQ(WorkOfRows(lane, 0, GroupRows(lane)).cached, 100 + 10);
}

TEST(LaneRowsTest, OneThatPartsEarlyLeavesTheOthersWhatTheyHaveInCommon) {
  std::vector<LaneDescription::Member> members = PrefixGroup();
  members[2].common_tokens = 60;
  const LaneDescription lane = Lane(members);
  EXPECT_EQ(GroupRows(lane), 24 + 10 + 40 + 7);
  EXPECT_EQ(WorkOfRows(lane, 34, 1).pass_depth, 104);
}

TEST(LaneRowsTest, RunsThatAreToldCount) {
  LaneDescription lane = Lane(PrefixGroup());
  lane.runs = {{.rows = 4}, {.rows = 6, .depth = 50, .cached = 46}};
  EXPECT_EQ(GroupRows(lane), 10);
  EXPECT_EQ(WorkOfRows(lane, 4, 1).pass_depth, 50);
  EXPECT_EQ(WorkLeft(lane, 3, 1024).cached, 3 * 46);
}

TEST(LaneRowsTest, APrefixGroupTakesItsLongestPromptAndWhatTheBackgroundReads) {
  std::vector<LaneDescription::Member> members = PrefixGroup();
  for (LaneDescription::Member& member : members) member.takes_in_order = true;
  EXPECT_EQ(LaneTokens(members), 144 + 7);
  members[2].takes_in_order = false;
  EXPECT_EQ(LaneTokens(members), 144 + 7 + 44);
  members = {members[1]};
  members[0].takes_in_order = false;
  EXPECT_EQ(LaneTokens(members), 7) << "alone it needs no KV of its own";
  // More rows than tokens that are kept.
  members.assign(8, {.rows = 90, .cached_tokens = 10, .takes_in_order = true, .prefix = 5});
  EXPECT_EQ(LaneTokens(members), 8 * 90);
}

TEST(LaneRowsTest, APromptAloneIsWhatItsLaneHasLeft) {
  for (const int64_t cached : {0, 50}) {
    for (const int64_t rows : {5, 6, 20}) {
      const LaneDescription::Member member{.rows = rows, .cached_tokens = cached};
      EXPECT_EQ(WorkAlone(member, 3, 8).Parts(), WorkLeft(Lane({member}), 3, 8).Parts());
    }
  }
  // The end of a part, of which less than the sink is left.
  EXPECT_EQ(WorkAlone({.rows = 2, .cached_tokens = 9}, 1, 8).pass_rows, 2);
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
