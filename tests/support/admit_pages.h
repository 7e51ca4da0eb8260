// Brings pages into a BlockCacheImage, each as a one-token cluster of its own.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/block_cache_image.h"
#include "tests/support/meta_pool_image.h"

namespace retroinfer::test_support {

// REQUIRES: at most 64 pages.
inline void AdmitPages(Backend& backend, BlockCacheImage& cache, StepStamp step,
                       const std::vector<PageId>& pages) {
  cache.BeginStep(step);
  DeviceData data(backend);
  MetaPoolImage pool({1, 1, 128, kBf16Kv}, 1);
  std::vector<int32_t> clusters;
  for (const PageId page : pages) {
    pool.host().Entries(0, 0, 0)[clusters.size()] = {page, 1};
    clusters.push_back(static_cast<int32_t>(clusters.size()));
  }
  const MetaIndexImage indexes(data, {{0}});
  clusters.resize(64, 0);
  const DeviceBuffer retrieved = data.Upload(clusters);
  const DeviceBuffer count = data.Upload(std::vector<int32_t>{static_cast<int32_t>(pages.size())});
  const DeviceBuffer refs = data.Allocate(64 * sizeof(PageRef));
  const DeviceBuffer num_pages = data.Allocate(sizeof(int32_t));
  ASSERT_TRUE(backend.ops->block_cache()
                  .PageLookup(*backend.stream, {.cache = cache.view(),
                                                .counters = cache.device_counters(),
                                                .pool = pool.Upload(data),
                                                .layer = 0,
                                                .indexes = indexes.views(),
                                                .batch = 1,
                                                .num_kv_heads = 1,
                                                .retrieved = retrieved.as<const int32_t>(),
                                                .num_retrieved = count.as<const int32_t>(),
                                                .max_retrieved = 64,
                                                .max_pages = 64,
                                                .pages = refs.as<PageRef>(),
                                                .num_pages = num_pages.as<int32_t>()})
                  .ok());
  ASSERT_TRUE(
      backend.ops->block_cache()
          .AdmitPages(*backend.stream, {.cache = cache.view(), .counters = cache.device_counters()})
          .ok());
  ASSERT_TRUE(backend.stream->Synchronize().ok());
}

}  // namespace retroinfer::test_support
