// With the reuse of recorded text the block cache has what a plain LRU of its size has: evictions
// come in time, and those who leave are the right ones.
#include <gtest/gtest.h>

#include "tests/support/timed_block_cache.h"

namespace retroinfer {
namespace {

using test_support::DrawnPageUse;
using test_support::TimedBlockCache;

TEST(EvictionsKeepUpTest, AsManyPagesHitAsInAnLru) {
  const DrawnPageUse use(1, 1, 122'880);
  for (const double share : {0.1, 0.2, 0.4}) {
    SCOPED_TRACE(share);
    TimedBlockCache cache(use, {.cache_share = share, .times = {.step_ms = 8}});
    for (int i = 0; i < 150; ++i) cache.Step();
    cache.Take();
    for (int i = 0; i < 50; ++i) cache.Step();
    const auto interval = cache.Take();
    EXPECT_EQ(interval.counters.hits + interval.counters.misses, interval.lookups);
    EXPECT_GE(interval.Share(interval.counters.hits), interval.Share(interval.lru_hits) - 0.01);
    EXPECT_EQ(interval.counters.transients, 0u) << "no free slot for a page that was missed";
    EXPECT_GT(interval.counters.evictions, interval.counters.admissions / 2);
  }
}

// Where a step misses a tenth of what is looked up: pages that are used while the store chooses
// must not take the places of others among its requests.
TEST(EvictionsKeepUpTest, NearlyAsManyPagesHitInAFewSlots) {
  const DrawnPageUse use(3, 6, 122'880);
  TimedBlockCache cache(use, {.cache_share = 0.05});
  for (int i = 0; i < 120; ++i) cache.Step();
  cache.Take();
  for (int i = 0; i < 40; ++i) cache.Step();
  const auto interval = cache.Take();
  EXPECT_LT(interval.Share(interval.lru_hits), 0.92) << "few slots";
  EXPECT_GE(interval.Share(interval.counters.hits), interval.Share(interval.lru_hits) - 0.02);
  EXPECT_LT(interval.counters.evictions_kept, interval.counters.evictions / 3);
}

}  // namespace
}  // namespace retroinfer
