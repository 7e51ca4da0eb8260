#include "gpu_worker/ops/block_cache/slot_fill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/support/admit_pages.h"
#include "tests/support/backends.h"

namespace retroinfer {
namespace {

using namespace test_support;
using testing::UnorderedElementsAre;

class SlotFillTest : public testing::TestWithParam<BackendParam> {
 protected:
  static constexpr uint32_t kListSize = 4096;
  static constexpr StepStamp kStep = 9;

  std::vector<SlotId> Take(BlockCacheImage& cache, uint32_t num_wanted, uint32_t num_kept) {
    EXPECT_TRUE(backend_->ops->block_cache()
                    .TakeSlots(*backend_->stream, {.cache = cache.view(),
                                                   .list = list(),
                                                   .num_wanted = num_wanted,
                                                   .num_kept = num_kept})
                    .ok());
    auto slots = data_.Download<SlotId>(slots_);
    slots.resize(data_.Download<SlotListHead>(head_)[0].num_slots);
    return slots;
  }
  void Admit(BlockCacheImage& cache, PageId first_page, uint32_t num_pages) {
    EXPECT_TRUE(backend_->ops->block_cache()
                    .AdmitSlots(*backend_->stream, {.cache = cache.view(),
                                                    .counters = cache.device_counters(),
                                                    .step = kStep,
                                                    .list = list(),
                                                    .first_page = first_page,
                                                    .num_pages = num_pages})
                    .ok());
    const SlotListHead head = data_.Download<SlotListHead>(head_)[0];
    EXPECT_EQ(head.num_slots, 0u);
    EXPECT_EQ(head.num_fresh + head.num_returned + head.num_finished, 0u);
  }
  SlotList list() { return {head_.as<SlotListHead>().device_data(), slots_.as<SlotId>()}; }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
  DeviceBuffer head_ = data_.Upload(std::vector<SlotListHead>(1));
  DeviceBuffer slots_ = data_.Allocate(kListSize * sizeof(SlotId));
};

TEST_P(SlotFillTest, TakesFreeSlotsAndLeavesWhatIsToBeKept) {
  BlockCacheImage cache(*backend_, 8, 4, 64, 64);
  AdmitPages(*backend_, cache, 5, {19, 20});
  EXPECT_THAT(Take(cache, 10, 3), UnorderedElementsAre(2, 3, 4));
  EXPECT_EQ(cache.num_free(), 3u);
  EXPECT_THAT(Take(cache, 10, 3), UnorderedElementsAre());
  EXPECT_EQ(cache.num_free(), 3u);
  EXPECT_EQ(cache.slot_page()[2], kNoPage) << "taken, not in the table";
}

TEST_P(SlotFillTest, AdmitsThePagesThatWereWritten) {
  BlockCacheImage cache(*backend_, 8, 4, 64, 64);
  const std::vector<SlotId> slots = Take(cache, 4, 0);
  ASSERT_EQ(slots.size(), 4u);
  Admit(cache, 30, 3);
  EXPECT_THAT(cache.DrainLog(), UnorderedElementsAre(Entry(LogKind::kAdmit, 30, slots[0], kStep),
                                                     Entry(LogKind::kAdmit, 31, slots[1], kStep),
                                                     Entry(LogKind::kAdmit, 32, slots[2], kStep)));
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(cache.page_slot()[30 + i], slots[i]);
    EXPECT_EQ(cache.slot_page()[slots[i]], 30 + i);
    EXPECT_EQ(cache.stamps()[slots[i]], kStep);
  }
  EXPECT_EQ(cache.num_free(), 5u) << "the fourth slot is free again";
  EXPECT_EQ(cache.counters().fills, 3u);
  EXPECT_EQ(cache.counters().admissions, 0u);
}

TEST_P(SlotFillTest, GivesSlotsBackThatNobodyWrote) {
  BlockCacheImage cache(*backend_, 8, 4, 64, 64);
  ASSERT_EQ(Take(cache, 6, 0).size(), 6u);
  Admit(cache, 0, 0);
  EXPECT_EQ(cache.num_free(), 8u);
  EXPECT_TRUE(cache.DrainLog().empty());
  auto slots = Take(cache, 8, 0);
  std::sort(slots.begin(), slots.end());
  std::vector<SlotId> all(8);
  std::iota(all.begin(), all.end(), 0u);
  EXPECT_EQ(slots, all) << "each slot once";
}

TEST_P(SlotFillTest, APageThatCameMeanwhileStaysWhereItIs) {
  BlockCacheImage cache(*backend_, 8, 4, 64, 64);
  ASSERT_EQ(Take(cache, 3, 0).size(), 3u);
  AdmitPages(*backend_, cache, 5, {21});
  const SlotId slot = cache.page_slot()[21];
  cache.DrainLog();
  Admit(cache, 20, 3);
  EXPECT_EQ(cache.page_slot()[21], slot);
  EXPECT_EQ(cache.DrainLog().size(), 2u);
  EXPECT_EQ(cache.num_free(), 5u);
}

TEST_P(SlotFillTest, ReleasesMustStillFitTheLog) {
  BlockCacheImage cache(*backend_, 8, 4, 64, 16);
  ASSERT_EQ(Take(cache, 5, 0).size(), 5u);
  cache.LeaveLogRoom(7);  // 2 entries, then the release of 5 slots in use
  Admit(cache, 20, 5);
  EXPECT_EQ(cache.counters().fills, 2u);
  EXPECT_EQ(cache.num_free(), 6u);
  const auto pages = cache.slot_page();
  EXPECT_EQ(std::count(pages.begin(), pages.end(), kNoPage), 6);
}

TEST_P(SlotFillTest, NothingIsAdmittedBehindAnImpossibleCursor) {
  BlockCacheImage cache(*backend_, 8, 4, 64, 16);
  ASSERT_EQ(Take(cache, 5, 0).size(), 5u);
  cache.log_tail().value = 1'000'000;
  Admit(cache, 20, 5);
  EXPECT_EQ(cache.counters().fills, 0u);
  EXPECT_EQ(cache.num_free(), 8u);
}

TEST_P(SlotFillTest, ManyPagesAtOnce) {
  constexpr uint32_t kSlots = 5000, kPages = 8000, kFirst = 3500;
  BlockCacheImage cache(*backend_, kSlots, 4, kPages, 16384);
  const std::vector<SlotId> slots = Take(cache, kListSize, 1000);
  ASSERT_EQ(slots.size(), 4000u);
  AdmitPages(*backend_, cache, 5, {3700, 4000, 5999, 7499});
  cache.DrainLog();
  Admit(cache, kFirst, 3990);
  const auto page_slot = cache.page_slot();
  const auto slot_page = cache.slot_page();
  for (uint32_t i = 0; i < 3990; ++i) {
    const SlotId slot = page_slot[kFirst + i];
    ASSERT_LT(slot, kSlots);
    ASSERT_EQ(slot_page[slot], kFirst + i);
    const bool came_meanwhile = i == 200 || i == 500 || i == 2499;
    ASSERT_EQ(slot == slots[i], !came_meanwhile);
  }
  auto log = cache.DrainLog();
  ASSERT_EQ(log.size(), 3987u);
  std::sort(log.begin(), log.end(),
            [](const LogEntry& a, const LogEntry& b) { return a.page < b.page; });
  for (const LogEntry& entry : log) {
    ASSERT_EQ(entry, Entry(LogKind::kAdmit, entry.page, page_slot[entry.page], kStep));
  }
  EXPECT_EQ(
      std::adjacent_find(log.begin(), log.end(),
                         [](const LogEntry& a, const LogEntry& b) { return a.page == b.page; }),
      log.end());
  EXPECT_EQ(cache.num_free(), kSlots - 3987 - 4);
  // Free are exactly the slots without a page.
  auto free = Take(cache, kListSize, 0);
  std::sort(free.begin(), free.end());
  std::vector<SlotId> empty;
  for (SlotId slot = 0; slot < kSlots; ++slot) {
    if (slot_page[slot] == kNoPage) empty.push_back(slot);
  }
  EXPECT_EQ(free, empty);
}

TEST_P(SlotFillTest, RefusesShortListsAndPagesBeyondTheArena) {
  BlockCacheImage cache(*backend_, 8, 4, 64, 64);
  EXPECT_EQ(backend_->ops->block_cache()
                .TakeSlots(*backend_->stream,
                           {.cache = cache.view(), .list = list(), .num_wanted = kListSize + 1})
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(backend_->ops->block_cache()
                .AdmitSlots(*backend_->stream, {.cache = cache.view(),
                                                .counters = cache.device_counters(),
                                                .list = list(),
                                                .first_page = 60,
                                                .num_pages = 5})
                .code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends, SlotFillTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
