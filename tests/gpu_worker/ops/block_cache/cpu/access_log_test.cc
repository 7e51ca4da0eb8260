#include "gpu_worker/ops/block_cache/cpu/access_log.h"

#include <gtest/gtest.h>

#include <array>

#include "gpu_worker/ops/block_cache/block_cache_check.h"
#include "tests/support/block_cache_image.h"

namespace retroinfer::cpu {
namespace {

using test_support::BlockCacheImage;
using test_support::Entry;

class AccessLogTest : public testing::Test {
 protected:
  std::unique_ptr<test_support::Backend> backend_ = test_support::AvailableBackends()[0].create();
  BlockCacheImage cache_{*backend_, 4, 4, 16, 4};
};

TEST_F(AccessLogTest, EntriesAreSeenOncePublished) {
  AccessLog log(cache_.view(), 9);
  EXPECT_EQ(log.room(), 4u);
  log.Append(LogKind::kAdmit, 3, 1);
  log.Append(LogKind::kRelease, 3, 1);
  EXPECT_TRUE(cache_.DrainLog().empty());
  log.Publish();
  EXPECT_EQ(cache_.DrainLog(), (std::vector<LogEntry>{Entry(LogKind::kAdmit, 3, 1, 9),
                                                      Entry(LogKind::kRelease, 3, 1, 9)}));
}

TEST_F(AccessLogTest, LooksAgainForRoomWhenItIsFull) {
  AccessLog log(cache_.view(), 9);
  for (PageId page = 0; page < 4; ++page) log.Append(LogKind::kAdmit, page, page);
  EXPECT_EQ(log.room(), 0u);
  log.Publish();
  EXPECT_EQ(cache_.DrainLog().size(), 4u);
  EXPECT_EQ(log.room(), 4u);
  log.Append(LogKind::kEvict, 2, 2);  // wraps around
  log.Publish();
  EXPECT_EQ(cache_.DrainLog(), (std::vector<LogEntry>{Entry(LogKind::kEvict, 2, 2, 9)}));
}

TEST_F(AccessLogTest, AnImpossibleCursorLeavesNoRoom) {
  cache_.log_tail().value = 77;
  EXPECT_EQ(AccessLog(cache_.view(), 9).room(), 0u);
}

TEST_F(AccessLogTest, RefusesACacheWhosePartsDoNotFit) {
  EXPECT_TRUE(CheckBlockCache(cache_.view(), "op").ok());
  BlockCacheView view = cache_.view();
  view.slot_stamp = view.slot_stamp.first(3);
  EXPECT_EQ(CheckBlockCache(view, "op").code(), absl::StatusCode::kInvalidArgument);
  view = cache_.view();
  view.log = view.log.first(3);
  EXPECT_EQ(CheckBlockCache(view, "op").code(), absl::StatusCode::kInvalidArgument);
  view = cache_.view();
  view.arena = view.arena.first(kPageBytes);
  EXPECT_EQ(CheckBlockCache(view, "op").code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace retroinfer::cpu
