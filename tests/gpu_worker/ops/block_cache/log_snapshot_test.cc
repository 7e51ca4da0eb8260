#include <gtest/gtest.h>

#include "gpu_worker/ops/block_cache/page_lookup.h"
#include "tests/support/admit_pages.h"
#include "tests/support/backends.h"

namespace retroinfer {
namespace {

using namespace test_support;

class LogSnapshotTest : public testing::TestWithParam<BackendParam> {
 protected:
  SlotId Snapshot(BlockCacheImage& cache, SlotId from) {
    const DeviceBuffer next = data_.Upload(std::vector<SlotId>{from});
    EXPECT_TRUE(backend_->ops->block_cache()
                    .LogSnapshot(*backend_->stream, {.cache = cache.view(),
                                                     .step = 9,
                                                     .next_slot = next.as<SlotId>().device_data()})
                    .ok());
    return data_.Download<SlotId>(next)[0];
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(LogSnapshotTest, WritesResidentPagesInParts) {
  BlockCacheImage cache(*backend_, 8, 4, 64, 16);
  AdmitPages(*backend_, cache, 5, {40, 41, 42, 43});
  AdmitPages(*backend_, cache, 6, {44, 45});
  cache.DrainLog();
  cache.LeaveLogRoom(4);
  EXPECT_EQ(Snapshot(cache, 0), 4u);
  std::vector<LogEntry> entries = cache.DrainLog();
  entries.erase(entries.begin(), entries.end() - 4);
  EXPECT_EQ(entries, (std::vector<LogEntry>{
                         Entry(LogKind::kAdmit, 40, 0, 9), Entry(LogKind::kAdmit, 41, 1, 9),
                         Entry(LogKind::kAdmit, 42, 2, 9), Entry(LogKind::kAdmit, 43, 3, 9)}));
  EXPECT_EQ(Snapshot(cache, 4), 8u);
  EXPECT_EQ(cache.DrainLog(), (std::vector<LogEntry>{Entry(LogKind::kAdmit, 44, 4, 9),
                                                     Entry(LogKind::kAdmit, 45, 5, 9)}));
}

TEST_P(LogSnapshotTest, AnEmptyCacheWritesNothing) {
  BlockCacheImage cache(*backend_, 8, 4, 64, 4);
  EXPECT_EQ(Snapshot(cache, 0), 8u);
  EXPECT_TRUE(cache.DrainLog().empty());
}

INSTANTIATE_TEST_SUITE_P(Backends, LogSnapshotTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
