// Statistics of a block cache that has come to rest, for tests.
#pragma once

#include <cstdint>

#include "common/log/check.h"
#include "gpu_worker/wave_buffer/block_cache.h"

namespace retroinfer::test_support {

// Counts of the device are copied beside its work, so that a call may give those of an earlier one.
// The second copy that is finished from here on was begun after all work so far.
inline BlockCacheStats SettledStats(BlockCache& cache, Stream& stream) {
  const uint64_t before = cache.Stats()->num_counts;
  BlockCacheStats stats;
  do {
    RI_CHECK(stream.Synchronize().ok());
    stats = *cache.Stats();
  } while (stats.num_counts < before + 2);
  return stats;
}

}  // namespace retroinfer::test_support
