#include "gpu_worker/wave_buffer/block_cache.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/block_cache_image.h"
#include "tests/support/cluster_lookup.h"
#include "tests/support/data_plane_memory.h"
#include "tests/support/faulty_block_cache_ops.h"
#include "tests/support/settled_stats.h"
#include "tests/support/tend_cache.h"

namespace retroinfer {
namespace {

using namespace test_support;

// Cluster i is the one page i, with 4 tokens.
class BlockCacheTest : public testing::TestWithParam<BackendParam> {
 protected:
  static constexpr uint32_t kSlots = 8, kLog = 64, kPages = 128;

  explicit BlockCacheTest(uint32_t num_slots = kSlots)
      : plane_(num_slots, kLog, 64, kPages), store_(plane_.view()) {
    arena_.resize(kPages * kPageBytes);
    for (PageId page = 0; page < kPages; ++page) {
      FillPattern(page, 0, arena_.data() + page * kPageBytes);
      lookup_.SetEntry(static_cast<int32_t>(page), {page, 4});
    }
    auto cache =
        BlockCache::Create(*backend_->device, backend_->ops->block_cache(), *backend_->stream,
                           {.num_slots = num_slots, .num_transient = 4}, arena_, plane_.bytes());
    RI_CHECK(cache.ok());
    cache_ = *std::move(cache);
  }

  // Begins a step, and lets the device finish what that started.
  void BeginStep() {
    ASSERT_TRUE(BeginTendedStep(*cache_).ok());
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(backend_->stream->Synchronize().ok());
      ASSERT_TRUE(Tend(*cache_).ok());
    }
  }
  void Lookup(const std::vector<int32_t>& pages) {
    const auto refs = lookup_.Run(cache_->view(), cache_->counters(), pages);
    ASSERT_EQ(refs.size(), pages.size());
    for (size_t i = 0; i < pages.size(); ++i) {
      EXPECT_TRUE(HasPattern(static_cast<PageId>(pages[i]), 0, lookup_.PageBytes(refs[i]).data()));
    }
  }
  void Step(const std::vector<int32_t>& pages) {
    BeginStep();
    Lookup(pages);
  }
  // What WriteSegment does with pages from `first_page` on.
  void WriteToSlots(BlockCache::FillTicket ticket, PageId first_page, uint32_t num_pages) {
    DeviceData data(*backend_);
    const SlotFill fill = cache_->fill(ticket);
    const auto slots = data.Download(DeviceSpan<const SlotId>(fill.list.slots));
    for (uint32_t i = 0; i < num_pages; ++i) {
      const auto page = std::span(arena_).subspan((first_page + i) * kPageBytes, kPageBytes);
      RI_CHECK(backend_->device
                   ->Upload(*backend_->stream, page,
                            fill.slots.subspan(slots[i] * kPageBytes, kPageBytes))
                   .ok());
    }
    RI_CHECK(backend_->stream->Synchronize().ok());
  }
  // As many entries as nobody has read yet, but for `leave`.
  void FillLog(size_t leave) {
    while (store_.log().FreeEntries() > leave) {
      RI_CHECK(store_.log().TryPush(Entry(LogKind::kKeep, 0, 0, 0)));
    }
  }
  // The same cache, empty, on operations that can fail.
  void UseFaultyOps() {
    cache_.reset();
    auto cache =
        BlockCache::Create(*backend_->device, faulty_, *backend_->stream,
                           {.num_slots = kSlots, .num_transient = 4}, arena_, plane_.bytes());
    RI_CHECK(cache.ok());
    cache_ = *std::move(cache);
  }
  // Tends the cache until that fails.
  void TendUntilItFails() {
    for (int i = 0; i < 10; ++i) {
      if (!Tend(*cache_).ok()) return;
      ASSERT_TRUE(backend_->stream->Synchronize().ok());
    }
    FAIL() << "nothing failed";
  }
  std::vector<LogEntry> DrainLog() {
    std::vector<LogEntry> entries(kLog);
    entries.resize(*store_.log().Pop(std::span(entries)));
    return entries;
  }
  BlockCacheStats Stats() { return SettledStats(*cache_, *backend_->stream); }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  FaultyBlockCacheOps faulty_{backend_->ops->block_cache()};
  DataPlaneMemory plane_;
  DataPlane store_;  // the store's side
  std::vector<std::byte> arena_;
  ClusterLookup lookup_{*backend_, 2, 64, 64};
  std::unique_ptr<BlockCache> cache_;
};

TEST_P(BlockCacheTest, WorksWithoutTransientSlots) {
  cache_.reset();
  auto cache = BlockCache::Create(*backend_->device, backend_->ops->block_cache(),
                                  *backend_->stream, {.num_slots = kSlots}, arena_, plane_.bytes());
  ASSERT_TRUE(cache.ok()) << cache.status();
  cache_ = *std::move(cache);
  EXPECT_TRUE(cache_->view().transient.empty());
  Step({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});  // four more pages than there are slots
  EXPECT_EQ(Stats().counters.admissions, kSlots);
  EXPECT_EQ(Stats().counters.transients, 4u);
}

TEST_P(BlockCacheTest, TellsTheStoreTheStepAndTheStampsWhenAsked) {
  Step({5, 6});
  Step({6});
  EXPECT_EQ(store_.worker_step().load(), 2u);
  EXPECT_EQ(store_.stamps()[1], 0u) << "not asked";
  ++store_.stamp_control().requested.value;
  BeginStep();
  EXPECT_EQ(store_.stamp_control().published.value.load(), 1u);
  EXPECT_EQ(store_.stamps()[0], 1u);
  EXPECT_EQ(store_.stamps()[1], 2u);
}

TEST_P(BlockCacheTest, AppliesEvictionRequestsBetweenSteps) {
  Step({0, 1, 2, 3, 4, 5, 6, 7});
  DrainLog();
  ASSERT_TRUE(store_.requests().TryPush({2, 2, 1, 0}));
  ASSERT_TRUE(store_.requests().TryPush({3, 3, 0, 0}));  // stamp of another step
  Step({20});
  EXPECT_EQ(DrainLog(),
            (std::vector<LogEntry>{Entry(LogKind::kEvict, 2, 2, 2), Entry(LogKind::kKeep, 3, 3, 2),
                                   Entry(LogKind::kAdmit, 20, 2, 2)}));
  const BlockCacheStats stats = Stats();
  EXPECT_EQ(stats.counters.evictions, 1u);
  EXPECT_EQ(stats.counters.evictions_kept, 1u);
  EXPECT_EQ(stats.num_used_slots, 8u);
}

TEST_P(BlockCacheTest, TakesNoMoreRequestsThanTheLogHasRoomFor) {
  Step({0, 1, 2, 3, 4, 5, 6, 7});  // 8 of 64 entries
  for (uint32_t i = 0; i < 60; ++i) ASSERT_TRUE(store_.requests().TryPush({i % 8, 99, 0, 0}));
  BeginStep();
  EXPECT_EQ(store_.requests().Depth(), 12u);  // 8 entries stay free for the releases of 8 slots
  BeginStep();
  EXPECT_EQ(store_.requests().Depth(), 12u);
  EXPECT_EQ(DrainLog().size(), 56u);
  BeginStep();
  EXPECT_EQ(store_.requests().Depth(), 0u);
  EXPECT_EQ(Stats().counters.evictions_kept, 60u);
}

TEST_P(BlockCacheTest, SurvivesAnImpossibleRequestCursor) {
  Step({0});
  auto* control = reinterpret_cast<DataPlaneControl*>(plane_.bytes().data());
  control->request_head.value = 1'000'000;
  Step({1});
  EXPECT_GE(Stats().ring_errors, 1u);
  EXPECT_EQ(Stats().num_used_slots, 2u);
}

TEST_P(BlockCacheTest, ReleasesEndedSegmentsInOrderAndTellsWhen) {
  Step({0, 1, 2, 3, 40});
  DrainLog();
  const auto first = cache_->Release(0, 3);
  const auto second = cache_->Release(3, 1);
  EXPECT_FALSE(cache_->ReleaseDone(first));
  EXPECT_EQ(Stats().pages_to_release, 4u);
  BeginStep();
  EXPECT_TRUE(cache_->ReleaseDone(first));
  EXPECT_TRUE(cache_->ReleaseDone(second));
  EXPECT_EQ(DrainLog().size(), 4u);
  EXPECT_EQ(Stats().num_used_slots, 1u);
  EXPECT_EQ(Stats().pages_to_release, 0u);
}

TEST_P(BlockCacheTest, RefusalsLeaveTheLogRoomForReleases) {
  Step({0, 1, 2, 3, 4, 5, 6, 7});
  for (uint32_t i = 0; i < 60; ++i) ASSERT_TRUE(store_.requests().TryPush({0, 99, 0, 0}));
  BeginStep();
  const auto ticket = cache_->Release(0, 8);
  BeginStep();
  EXPECT_TRUE(cache_->ReleaseDone(ticket));
  EXPECT_EQ(Stats().num_used_slots, 0u);
  EXPECT_LE(DrainLog().size(), kLog);
}

TEST_P(BlockCacheTest, AFullLogDelaysReleases) {
  Step({0, 1, 2, 3, 4, 5, 6, 7});
  FillLog(/*leave=*/1);
  const auto ticket = cache_->Release(0, 8);
  BeginStep();
  EXPECT_FALSE(cache_->ReleaseDone(ticket));
  EXPECT_EQ(Stats().num_used_slots, 7u);
  DrainLog();
  BeginStep();
  EXPECT_TRUE(cache_->ReleaseDone(ticket));
  EXPECT_EQ(Stats().num_used_slots, 0u);
}

TEST_P(BlockCacheTest, ReplaysItselfToARestartedStore) {
  Step({10, 11, 12});
  Step({13});
  cache_->RequestSnapshot();
  Step({11, 50});  // 50 is admitted after the snapshot, which fits into the log at once
  const auto entries = DrainLog();
  ASSERT_EQ(entries.size(), 4u + 1 + 4 + 1);
  EXPECT_EQ(entries[4], Entry(LogKind::kReset, kNoPage, kNoSlot, 3));
  for (uint32_t slot = 0; slot < 4; ++slot) {
    EXPECT_EQ(entries[5 + slot], Entry(LogKind::kAdmit, 10 + slot, slot, 3));
  }
  EXPECT_EQ(entries[9], Entry(LogKind::kAdmit, 50, 4, 3));
  EXPECT_EQ(Stats().snapshots, 1u);
}

TEST_P(BlockCacheTest, ASnapshotLeavesTheLogRoomForReleases) {
  Step({0, 1, 2, 3, 4, 5});
  DrainLog();
  FillLog(/*leave=*/6);
  cache_->RequestSnapshot();
  const auto ticket = cache_->Release(0, 6);
  BeginStep();
  EXPECT_TRUE(cache_->ReleaseDone(ticket));
  EXPECT_EQ(Stats().snapshots, 0u);
  DrainLog();
  BeginStep();
  EXPECT_EQ(DrainLog(), (std::vector<LogEntry>{Entry(LogKind::kReset, kNoPage, kNoSlot, 3)}));
  EXPECT_EQ(Stats().snapshots, 1u);
}

// A log that has no entry for the admission and the release of each page in a slot.
class SmallLogTest : public BlockCacheTest {
 protected:
  SmallLogTest() : BlockCacheTest(64) {}
};

TEST_P(SmallLogTest, ASnapshotThatDoesNotFitStopsEverythingElseMeanwhile) {
  std::vector<int32_t> pages(20);
  std::iota(pages.begin(), pages.end(), 0);
  Step(pages);
  DrainLog();
  std::iota(pages.begin(), pages.end(), 20);
  Step(pages);
  DrainLog();
  FillLog(/*leave=*/32);
  cache_->RequestSnapshot();
  const auto ticket = cache_->Release(0, 1);
  ASSERT_TRUE(store_.requests().TryPush({1, 1, 1, 0}));
  Step({77});  // kReset and slots 0 to 30
  EXPECT_TRUE(Stats().is_snapshot_running);
  EXPECT_FALSE(cache_->ReleaseDone(ticket));
  EXPECT_EQ(Stats().counters.transients, 1u) << "admitted during a snapshot";
  EXPECT_EQ(DrainLog().size(), 64u);
  Step({77});
  EXPECT_FALSE(Stats().is_snapshot_running);
  EXPECT_TRUE(cache_->ReleaseDone(ticket));
  const auto entries = DrainLog();
  ASSERT_EQ(entries.size(), 9u + 3);
  EXPECT_EQ(entries[0], Entry(LogKind::kAdmit, entries[0].page, 31, entries[0].step));
  EXPECT_EQ(entries[8].kind, static_cast<uint32_t>(LogKind::kAdmit));
  EXPECT_EQ(entries[9].kind, static_cast<uint32_t>(LogKind::kRelease));
  EXPECT_EQ(entries[10].kind, static_cast<uint32_t>(LogKind::kEvict));
  EXPECT_EQ(entries[11].kind, static_cast<uint32_t>(LogKind::kAdmit));
}

TEST_P(BlockCacheTest, PagesOfANewSegmentAreFoundInTheSlotsTheyWereWrittenTo) {
  const BlockCache::FillTicket ticket = *cache_->BeginFill(3);
  ASSERT_NE(ticket, BlockCache::kNoFill);
  WriteToSlots(ticket, 40, 3);
  EXPECT_EQ(Stats().num_used_slots, 3u);
  Step({40});  // not admitted yet, so it comes from the arena into a slot of its own
  const auto end = cache_->EndFill(ticket, 40, 3);
  EXPECT_FALSE(cache_->FillDone(end));
  Step({40, 41, 42});
  EXPECT_TRUE(cache_->FillDone(end));
  const BlockCacheStats stats = Stats();
  EXPECT_EQ(stats.counters.fills, 2u);
  EXPECT_EQ(stats.counters.misses, 1u);
  EXPECT_EQ(stats.counters.hits, 3u);
  EXPECT_EQ(stats.num_used_slots, 3u);
  const auto release = cache_->Release(40, 3);
  BeginStep();
  EXPECT_TRUE(cache_->ReleaseDone(release));
  EXPECT_EQ(Stats().num_used_slots, 0u);
}

TEST_P(BlockCacheTest, FillsLeaveSomeSlotsFreeAndShareTheRest) {
  const auto first = *cache_->BeginFill(5), second = *cache_->BeginFill(100),
             third = *cache_->BeginFill(100);
  EXPECT_EQ(Stats().num_used_slots, 7u) << "one in eight stays free";
  EXPECT_EQ(cache_->EndFill(BlockCache::kNoFill, 0, 0), 0u);
  EXPECT_TRUE(cache_->FillDone(0));
  // The segment ends right after it was built: nothing of it stays.
  WriteToSlots(first, 0, 5);
  cache_->EndFill(first, 0, 5);
  const auto release = cache_->Release(0, 5);
  cache_->EndFill(third, 0, 0);
  const auto last = cache_->EndFill(second, 0, 0);
  BeginStep();
  EXPECT_TRUE(cache_->ReleaseDone(release));
  EXPECT_TRUE(cache_->FillDone(last));
  EXPECT_EQ(Stats().num_used_slots, 0u);
  EXPECT_EQ(Stats().counters.releases, 5u);
}

TEST_P(BlockCacheTest, FillsBeforeOneThatFailsAreAdmittedOnce) {
  UseFaultyOps();
  const auto first = *cache_->BeginFill(3), second = *cache_->BeginFill(2);
  WriteToSlots(first, 40, 3);
  WriteToSlots(second, 60, 2);
  const auto first_end = cache_->EndFill(first, 40, 3);
  const auto second_end = cache_->EndFill(second, 60, 2);
  faulty_.FailAfter("AdmitSlots", 1);
  TendUntilItFails();
  ASSERT_TRUE(backend_->stream->Synchronize().ok());
  TendUntilItFails();  // the second one alone, and not for good
  EXPECT_TRUE(cache_->FillDone(first_end));
  EXPECT_FALSE(cache_->FillDone(second_end));
  const auto release = cache_->Release(60, 2);
  faulty_.Heal();
  Step({40, 41, 42});
  EXPECT_TRUE(cache_->FillDone(second_end));
  EXPECT_TRUE(cache_->ReleaseDone(release));
  const auto entries = DrainLog();
  ASSERT_EQ(entries.size(), 7u) << "an admission of each of five pages, a release of two";
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(entries[i].kind, static_cast<uint32_t>(LogKind::kAdmit));
    EXPECT_EQ(entries[i].page, i < 3 ? 40 + i : 60 + i - 3);
  }
  EXPECT_EQ(Stats().counters.fills, 5u);
  EXPECT_EQ(Stats().counters.hits, 3u);
  EXPECT_EQ(Stats().num_used_slots, 3u);
}

TEST_P(BlockCacheTest, EveryRequestIsAnsweredThoughARoundFails) {
  UseFaultyOps();
  Step({0, 1, 2});
  DrainLog();
  ASSERT_TRUE(store_.requests().TryPush({0, 0, 1, 0}));
  ASSERT_TRUE(store_.requests().TryPush({1, 1, 0, 0}));  // stamp of another step
  faulty_.FailAfter("ApplyEvictions", 0);
  TendUntilItFails();
  ASSERT_TRUE(store_.requests().TryPush({2, 2, 1, 0}));
  faulty_.Heal();
  BeginStep();
  BeginStep();
  EXPECT_EQ(DrainLog(),
            (std::vector<LogEntry>{Entry(LogKind::kEvict, 0, 0, 2), Entry(LogKind::kKeep, 1, 1, 2),
                                   Entry(LogKind::kEvict, 2, 2, 2)}));
  EXPECT_EQ(Stats().num_used_slots, 1u);
}

TEST_P(BlockCacheTest, RefusesADataPlaneOfOtherSizes) {
  const auto cache =
      BlockCache::Create(*backend_->device, backend_->ops->block_cache(), *backend_->stream,
                         {.num_slots = kSlots + 1, .num_transient = 4}, arena_, plane_.bytes());
  EXPECT_EQ(cache.status().code(), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends, BlockCacheTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);
INSTANTIATE_TEST_SUITE_P(Backends, SmallLogTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
