#include <gtest/gtest.h>

#include "gpu_worker/ops/block_cache/page_lookup.h"
#include "tests/support/admit_pages.h"
#include "tests/support/backends.h"

namespace retroinfer {
namespace {

using namespace test_support;

class ReleasePagesTest : public testing::TestWithParam<BackendParam> {
 protected:
  PageId Release(BlockCacheImage& cache, PageId first_page, uint32_t num_pages) {
    const DeviceBuffer next = data_.Upload(std::vector<PageId>{kNoPage});
    EXPECT_TRUE(backend_->ops->block_cache()
                    .ReleasePages(*backend_->stream, {.cache = cache.view(),
                                                      .counters = cache.device_counters(),
                                                      .step = 9,
                                                      .first_page = first_page,
                                                      .num_pages = num_pages,
                                                      .next_page = next.as<PageId>().device_data()})
                    .ok());
    return data_.Download<PageId>(next)[0];
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(ReleasePagesTest, FreesTheSlotsOfTheRangeOnly) {
  BlockCacheImage cache(*backend_, 4, 4, 64, 64);
  AdmitPages(*backend_, cache, 5, {19, 20, 25, 30});
  cache.DrainLog();
  EXPECT_EQ(Release(cache, 20, 10), 30u);
  EXPECT_EQ(cache.DrainLog(), (std::vector<LogEntry>{Entry(LogKind::kRelease, 20, 1, 9),
                                                     Entry(LogKind::kRelease, 25, 2, 9)}));
  EXPECT_EQ(cache.slot_page(), (std::vector<PageId>{19, kNoPage, kNoPage, 30}));
  EXPECT_EQ(cache.num_free(), 2u);
  EXPECT_EQ(cache.counters().releases, 2u);
}

TEST_P(ReleasePagesTest, StopsWhereTheLogIsFullAndGoesOnLater) {
  BlockCacheImage cache(*backend_, 4, 4, 64, 8);
  AdmitPages(*backend_, cache, 5, {20, 21, 22});
  cache.LeaveLogRoom(1);
  EXPECT_EQ(Release(cache, 18, 10), 21u);
  EXPECT_EQ(Release(cache, 21, 7), 21u);
  cache.DrainLog();
  EXPECT_EQ(Release(cache, 21, 7), 28u);
  EXPECT_EQ(cache.num_free(), 4u);
}

TEST_P(ReleasePagesTest, RefusesPagesBeyondTheArena) {
  BlockCacheImage cache(*backend_, 4, 4, 64, 4);
  PageId next = 0;
  EXPECT_EQ(backend_->ops->block_cache()
                .ReleasePages(*backend_->stream, {.cache = cache.view(),
                                                  .counters = cache.device_counters(),
                                                  .first_page = 60,
                                                  .num_pages = 5,
                                                  .next_page = &next})
                .code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends, ReleasePagesTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
