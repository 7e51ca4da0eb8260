#include "kv_store_service/store/store_stats.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/kv_store_service/lease/plane_fixture.h"
#include "tests/kv_store_service/segment_writer.h"

namespace retroinfer::kvstore {
namespace {

TEST(StoreStatsTest, AddsCountersAndReplacesSizes) {
  StoreStats stats;
  AddCounters(DataPlaneStats{.entries_replayed = 2, .used_slots = 9}, &stats.data_plane);
  AddCounters(DataPlaneStats{.entries_replayed = 3, .evictions_kept = 1}, &stats.data_plane);
  EXPECT_EQ(stats.data_plane.entries_replayed, 5u);
  EXPECT_EQ(stats.data_plane.evictions_kept, 1u);
  EXPECT_EQ(stats.data_plane.used_slots, 0u);

  ArenaSegments segments(6000, kTinyGeometry);
  const auto reserved = segments.Reserve(ReserveRequest::Unnamed(1, {1024}));
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  segments.Withhold({5000, 10});
  AddSegmentStats(segments, &stats);
  EXPECT_EQ(stats.reserved_extents, 1u);
  EXPECT_EQ(stats.withheld_pages, 10u);
  EXPECT_EQ(stats.free_pages, 6000u - 10 - reserved->extents[0].pages.count);

  Attachment holder{.token = "", .parameters = {kTinyGeometry, "model", 16, 64, 64}, .pid = 7};
  holder.planes = MakePlanes();
  AddHolderStats(holder, &stats);
  EXPECT_TRUE(stats.worker_attached);
  EXPECT_EQ(stats.worker_pid, 7);
  EXPECT_EQ(stats.data_plane.num_slots, 16u);
  EXPECT_EQ(stats.data_plane.entries_replayed, 5u);
}

}  // namespace
}  // namespace retroinfer::kvstore
