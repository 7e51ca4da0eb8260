#include "gpu_worker/engine/engine_stats_board.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "tests/support/backends.h"
#include "tests/support/data_plane_memory.h"
#include "tests/support/fake_segment_store.h"

namespace retroinfer {
namespace {

TEST(EngineStatsBoardTest, ASnapshotHasTheCountersAndTheSources) {
  constexpr uint32_t kArenaPages = 1024, kSlots = 64;
  const KvGeometry geometry{1, 1, 64, kBf16Kv};
  const auto backend = test_support::AvailableBackends().front().create();
  test_support::FakeSegmentStore store(geometry, kArenaPages);
  test_support::DataPlaneMemory plane(kSlots, 256, 64, kArenaPages);
  const auto memory = *KvMemory::Create(*backend->device, {.geometry = geometry,
                                                           .dense_blocks = 10,
                                                           .meta_blocks = 4,
                                                           .max_sequences = 2,
                                                           .max_model_len = 4096});
  const auto cache =
      *BlockCache::Create(*backend->device, backend->ops->block_cache(), *backend->stream,
                          {.num_slots = kSlots, .num_transient = 8}, store.arena(), plane.bytes());
  SequenceSegments::Parts parts{.device = backend->device.get(),
                                .ops = &backend->ops->index(),
                                .stream = backend->stream.get(),
                                .memory = memory.get(),
                                .cache = cache.get()};
  parts.builder = *SegmentBuilder::Create(
      *backend->device, *backend->ops, *backend->background, memory->meta_pool(),
      {.host = store.arena(), .device = cache->device_arena()}, {}, {.max_open_segments = 1});
  const auto segments = *SequenceSegments::Create({}, std::move(parts));
  EngineStatsBoard board({.device = backend->device.get(),
                          .memory = memory.get(),
                          .cache = cache.get(),
                          .store = &store,
                          .segments = segments.get()});
  EXPECT_FALSE(board.Read().ready);  // nothing was published yet

  SequenceKv sequence;
  ASSERT_TRUE(memory->Reserve({.dense_blocks = 3, .meta_blocks = 1}, sequence));
  board.counters().prompt_tokens = 77;
  board.BeginRound();
  absl::SleepFor(absl::Milliseconds(30));
  const absl::Time oldest = absl::Now();
  board.Update({.running = 2, .waiting = 5, .waiting_for_prefill = 1, .oldest_waiting = oldest},
               10'000'000);
  EXPECT_EQ(board.Read().requests_waiting, 0) << "not shown yet";
  board.Publish();
  board.EndRound();
  const EngineStats stats = board.Read();
  EXPECT_EQ(stats.requests_running, 2);
  EXPECT_EQ(stats.requests_waiting, 5);
  EXPECT_EQ(stats.requests_waiting_for_prefill, 1);
  EXPECT_EQ(stats.oldest_waiting, oldest);
  EXPECT_EQ(stats.prompt_tokens, 77u);
  EXPECT_EQ(stats.dense_blocks_used, 3);
  EXPECT_EQ(stats.dense_blocks_total, 10);
  EXPECT_EQ(stats.meta_blocks_used, 1);
  EXPECT_EQ(stats.slots_total, kSlots);
  EXPECT_EQ(stats.table_rows_used, 1);
  EXPECT_GE(stats.busy_seconds, 0.02) << "without the 10 ms in which it waited";
  EXPECT_TRUE(stats.ready);
  store.set_attached(false);
  absl::SleepFor(absl::Milliseconds(10));
  board.Update({}, 10'000'000);
  board.Publish();
  EXPECT_FALSE(board.Read().ready);
  EXPECT_EQ(board.Read().busy_seconds, stats.busy_seconds) << "between rounds nobody works";

  board.StartCounting();
  EXPECT_EQ(board.Read().prompt_tokens, 0u);
  EXPECT_EQ(board.Read().busy_seconds, 0);
  EXPECT_EQ(board.Read().dense_blocks_used, 3) << "what is of now stays";
  board.counters().prompt_tokens += 5;
  board.Update({}, 10'000'000);
  board.Publish();
  EXPECT_EQ(board.Read().prompt_tokens, 5u);
}

}  // namespace
}  // namespace retroinfer
