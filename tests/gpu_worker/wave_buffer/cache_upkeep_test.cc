#include "gpu_worker/wave_buffer/cache_upkeep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

CacheState Idle() {
  return {
      .is_busy = false,
      .num_slots = 100,
      .log_capacity = 256,
      .log_free_entries = 256,
      .fills = {},
      .releases = {},
  };
}

TEST(CacheUpkeepTest, NothingToDoIsAnEmptyPlan) {
  EXPECT_TRUE(PlanUpkeep(Idle()).empty());
  EXPECT_TRUE(PlanUpkeep(CacheState()).empty());
}

TEST(CacheUpkeepTest, NothingIsBegunBeforeTheDeviceIsDone) {
  CacheState state = Idle();
  state.is_busy = true;
  state.wants_snapshot = state.wants_stamps = true;
  state.fills = {5};
  state.releases = {7};
  state.eviction_requests = 3;
  EXPECT_TRUE(PlanUpkeep(state).empty());
}

TEST(CacheUpkeepTest, EvictionsLeaveTheLogRoomForReleases) {
  CacheState state = Idle();
  state.eviction_requests = 1000;
  EXPECT_EQ(PlanUpkeep(state).evictions, 156u);
  state.log_free_entries = 101;
  EXPECT_EQ(PlanUpkeep(state).evictions, 1u);
  state.log_free_entries = 100;
  EXPECT_EQ(PlanUpkeep(state).evictions, 0u);
  state.num_slots = 200;  // more than half of the log: half of it is kept
  state.log_free_entries = 130;
  EXPECT_EQ(PlanUpkeep(state).evictions, 2u);
  state.log_capacity = state.log_free_entries = 1u << 26;
  state.eviction_requests = 1u << 26;
  EXPECT_EQ(PlanUpkeep(state).evictions, kMaxEvictions);
}

TEST(CacheUpkeepTest, EvictionsComeAfterWhatTakesEntriesOfTheLog) {
  CacheState state = Idle();
  state.eviction_requests = 3;
  state.fills = {5};
  EXPECT_EQ(PlanUpkeep(state).evictions, 0u);
  state.fills = {};
  state.releases = {7};
  EXPECT_EQ(PlanUpkeep(state).evictions, 0u);
  state.releases = {};
  EXPECT_EQ(PlanUpkeep(state).evictions, 3u);
}

TEST(CacheUpkeepTest, StampsArePublishedBesideTheRest) {
  CacheState state = Idle();
  state.wants_stamps = true;
  EXPECT_TRUE(PlanUpkeep(state).stamps);
  state.eviction_requests = 3;
  state.releases = {7};
  EXPECT_TRUE(PlanUpkeep(state).stamps);
}

TEST(CacheUpkeepTest, NothingIsReleasedBeforeAllFillsAreAdmitted) {
  CacheState state = Idle();
  state.fills = {5, 0, 6};
  state.releases = {7, 0};
  CacheUpkeep plan = PlanUpkeep(state);
  EXPECT_EQ(plan.fills, 3u);
  EXPECT_THAT(plan.releases, ElementsAre(7, 0));
  state.fills = {1u << 20, 0, 1, 2};
  plan = PlanUpkeep(state);
  EXPECT_EQ(plan.fills, 2u);
  EXPECT_THAT(plan.releases, IsEmpty());
  state.fills = {1u << 21, 1};
  EXPECT_EQ(PlanUpkeep(state).fills, 1u) << "one that is larger than a round is not left for ever";
}

TEST(CacheUpkeepTest, ARoundExaminesSoManyPagesAndRanges) {
  CacheState state = Idle();
  state.releases = {1u << 19, 1u << 20, 5};
  EXPECT_THAT(PlanUpkeep(state).releases, ElementsAre(1u << 19, 1u << 19));
  state.releases.assign(kMaxReleases + 5, 1);
  EXPECT_EQ(PlanUpkeep(state).releases.size(), kMaxReleases);
}

TEST(CacheUpkeepTest, ASnapshotBeginsWhenItFitsAndIsAlone) {
  CacheState state = Idle();
  state.wants_snapshot = true;
  state.log_free_entries = 200;  // one less than an entry and a release of each page, and a reset
  state.eviction_requests = 3;
  CacheUpkeep plan = PlanUpkeep(state);
  EXPECT_EQ(plan.snapshot, CacheUpkeep::Snapshot::kNone);
  EXPECT_EQ(plan.evictions, 3u) << "it goes on meanwhile";
  state.log_free_entries = 201;
  state.fills = {5};
  state.wants_stamps = true;
  plan = PlanUpkeep(state);
  EXPECT_EQ(plan, CacheUpkeep{.snapshot = CacheUpkeep::Snapshot::kBegin});
  state.wants_snapshot = false;
  state.is_snapshot_running = true;
  state.log_free_entries = 0;
  EXPECT_EQ(PlanUpkeep(state), CacheUpkeep{.snapshot = CacheUpkeep::Snapshot::kContinue});
  // One that is to begin anew: the rest of the old one is for nobody.
  state.wants_snapshot = true;
  EXPECT_TRUE(PlanUpkeep(state).empty());
  // A log that is too small for both.
  state = Idle();
  state.wants_snapshot = true;
  state.num_slots = 1000;
  state.log_free_entries = 127;
  EXPECT_EQ(PlanUpkeep(state).snapshot, CacheUpkeep::Snapshot::kNone);
  state.log_free_entries = 128;
  EXPECT_EQ(PlanUpkeep(state).snapshot, CacheUpkeep::Snapshot::kBegin);
}

}  // namespace
}  // namespace retroinfer
