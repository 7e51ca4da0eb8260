#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "gpu_worker/ops/block_cache/page_lookup.h"
#include "tests/support/admit_pages.h"
#include "tests/support/backends.h"

namespace retroinfer {
namespace {

using namespace test_support;

class ApplyEvictionsTest : public testing::TestWithParam<BackendParam> {
 protected:
  void Apply(BlockCacheImage& cache, StepStamp step, const std::vector<EvictionRequest>& requests) {
    const DeviceBuffer device = data_.Upload(requests);
    ASSERT_TRUE(
        backend_->ops->block_cache()
            .ApplyEvictions(*backend_->stream,
                            {.cache = cache.view(),
                             .counters = cache.device_counters(),
                             .step = step,
                             .requests = device.as<const EvictionRequest>().first(requests.size())})
            .ok());
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(ApplyEvictionsTest, EvictsWhatIsUnchangedAndKeepsTheRest) {
  BlockCacheImage cache(*backend_, 4, 4, 64, 64);
  AdmitPages(*backend_, cache, 5, {30, 31, 32});  // slots 0, 1, 2
  AdmitPages(*backend_, cache, 6, {31});          // stamps slot 1
  cache.DrainLog();
  Apply(cache, 7, {{0, 30, 5, 0}, {1, 31, 5, 0}, {2, 33, 5, 0}, {3, 31, 0, 0}});
  EXPECT_EQ(
      cache.DrainLog(),
      (std::vector<LogEntry>{Entry(LogKind::kEvict, 30, 0, 7), Entry(LogKind::kKeep, 31, 1, 7),
                             Entry(LogKind::kKeep, 33, 2, 7), Entry(LogKind::kKeep, 31, 3, 7)}));
  EXPECT_EQ(cache.page_slot()[30], kNoSlot);
  EXPECT_EQ(cache.page_slot()[31], 1u);
  EXPECT_EQ(cache.slot_page()[0], kNoPage);
  EXPECT_EQ(cache.num_free(), 2u);
  EXPECT_EQ(cache.counters().evictions, 1u);
  EXPECT_EQ(cache.counters().evictions_kept, 3u);
  // The freed slot is used again.
  AdmitPages(*backend_, cache, 8, {40});
  EXPECT_EQ(cache.page_slot()[40], 0u);
}

TEST_P(ApplyEvictionsTest, ARequestTwiceFreesTheSlotOnce) {
  BlockCacheImage cache(*backend_, 2, 2, 64, 64);
  AdmitPages(*backend_, cache, 5, {30, 31});
  Apply(cache, 7, {{0, 30, 5, 0}, {0, 30, 5, 0}});
  EXPECT_EQ(cache.num_free(), 1u);
  EXPECT_EQ(cache.counters().evictions_kept, 1u);
}

TEST_P(ApplyEvictionsTest, ImpossibleRequestsAreCountedAndChangeNothing) {
  BlockCacheImage cache(*backend_, 2, 2, 64, 64);
  AdmitPages(*backend_, cache, 5, {30, 31});
  cache.DrainLog();
  Apply(cache, 7,
        {{2, 30, 5, 0}, {kNoSlot, 30, 5, 0}, {0, 64, 5, 0}, {1, kNoPage, 5, 0}, {99, 99, 99, 99}});
  EXPECT_TRUE(cache.DrainLog().empty());
  EXPECT_EQ(cache.counters().bad_requests, 5u);
  EXPECT_EQ(cache.num_free(), 0u);
  EXPECT_EQ(cache.slot_page(), (std::vector<PageId>{30, 31}));
}

TEST_P(ApplyEvictionsTest, NothingIsAppliedThatCannotBeLogged) {
  BlockCacheImage cache(*backend_, 2, 2, 64, 8);
  AdmitPages(*backend_, cache, 5, {30, 31});
  cache.LeaveLogRoom(0);
  Apply(cache, 7, {{0, 30, 5, 0}});
  EXPECT_EQ(cache.num_free(), 0u);
  EXPECT_EQ(cache.page_slot()[30], 0u);
}

// As many as come at once where misses are many: more than a thread block takes in one go.
TEST_P(ApplyEvictionsTest, ThousandsAreAnsweredInTheirOrder) {
  constexpr uint32_t kRequests = 9000, kEvery = 150, kPages = kRequests / kEvery;
  BlockCacheImage cache(*backend_, 64, 2, 256, 1 << 14);
  std::vector<PageId> pages;
  for (PageId page = 0; page < kPages; ++page) pages.push_back(100 + page);
  AdmitPages(*backend_, cache, 5, pages);  // slots 0, 1, 2, ...
  cache.DrainLog();
  std::vector<EvictionRequest> requests;
  std::vector<LogEntry> answers;
  for (uint32_t i = 0; i < kRequests; ++i) {
    if (i % kEvery == kEvery - 1) {
      const SlotId slot = kPages - 1 - i / kEvery;
      requests.push_back({slot, pages[slot], 5, 0});
      answers.push_back(Entry(LogKind::kEvict, pages[slot], slot, 7));
    } else if (i % 7 == 3) {
      requests.push_back({64, 1, 5, 0});  // impossible: no answer
    } else {
      requests.push_back({i % 64, i % 100, 5, 0});
      answers.push_back(Entry(LogKind::kKeep, i % 100, i % 64, 7));
    }
  }
  Apply(cache, 7, requests);
  EXPECT_EQ(cache.DrainLog(), answers);
  EXPECT_EQ(cache.num_free(), 64u);
  EXPECT_EQ(cache.counters().evictions, kPages);
  EXPECT_EQ(cache.counters().evictions_kept, answers.size() - kPages);
  EXPECT_EQ(cache.counters().bad_requests, kRequests - answers.size());
  // Every slot is free once.
  AdmitPages(*backend_, cache, 8, pages);
  std::set<SlotId> slots;
  for (const PageId page : pages) slots.insert(cache.page_slot()[page]);
  EXPECT_EQ(slots.size(), kPages);
}

INSTANTIATE_TEST_SUITE_P(Backends, ApplyEvictionsTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
