// Looks clusters of one KV head up in a block cache, and checks nothing: for tests of the wave
// buffer.
#pragma once

#include <vector>

#include "gpu_worker/ops/backend/ops.h"
#include "tests/support/device_data.h"

namespace retroinfer::test_support {

class ClusterLookup {
 public:
  // One layer, one KV head, 4 tokens a page; meta blocks 0 to num_blocks - 1 form the index.
  ClusterLookup(Backend& backend, int32_t num_blocks, int64_t max_retrieved, int64_t max_pages)
      : backend_(backend),
        data_(backend),
        max_retrieved_(max_retrieved),
        max_pages_(max_pages),
        pool_bytes_(data_.Upload(std::vector<std::byte>(static_cast<size_t>(num_blocks) *
                                                        MetaPoolView::BlockBytes(kGeometry)))),
        refs_(data_.Allocate(static_cast<size_t>(max_pages) * sizeof(PageRef))),
        num_pages_(data_.Allocate(sizeof(int32_t))),
        retrieved_(data_.Allocate(static_cast<size_t>(max_retrieved) * sizeof(int32_t))),
        num_retrieved_(data_.Allocate(sizeof(int32_t))) {
    std::vector<MetaBlockId> blocks;
    for (MetaBlockId id = 0; id < num_blocks; ++id) blocks.push_back(id);
    blocks_ = data_.Upload(blocks);
    index_ = data_.Upload(
        std::vector<MetaIndexView>{{blocks_.as<const MetaBlockId>().device_data(), num_blocks}});
  }

  // Where cluster `cluster` (block * 64 + place) lies.
  void SetEntry(int32_t cluster, const MetaEntry& entry) {
    MetaEntry* place = pool().Entries(cluster / 64, 0, 0) + cluster % 64;
    Copy(std::as_bytes(std::span(&entry, 1)), reinterpret_cast<std::byte*>(place));
  }

  // Returns the execution buffer, in the order of `clusters`.
  std::vector<PageRef> Run(const BlockCacheView& cache, BlockCacheCounters* counters,
                           const std::vector<int32_t>& clusters) {
    const std::vector<int32_t> count = {static_cast<int32_t>(clusters.size())};
    Copy(std::as_bytes(std::span(clusters)), retrieved_.bytes().device_data());
    Copy(std::as_bytes(std::span(count)), num_retrieved_.bytes().device_data());
    RI_CHECK(
        backend_.ops->block_cache()
            .PageLookup(*backend_.stream, {.cache = cache,
                                           .counters = counters,
                                           .pool = pool(),
                                           .layer = 0,
                                           .indexes = index_.as<const MetaIndexView>().first(1),
                                           .batch = 1,
                                           .num_kv_heads = 1,
                                           .retrieved = retrieved_.as<const int32_t>(),
                                           .num_retrieved = num_retrieved_.as<const int32_t>(),
                                           .max_retrieved = max_retrieved_,
                                           .max_pages = max_pages_,
                                           .pages = refs_.as<PageRef>(),
                                           .num_pages = num_pages_.as<int32_t>()})
            .ok());
    RI_CHECK(backend_.ops->block_cache()
                 .AdmitPages(*backend_.stream, {.cache = cache, .counters = counters})
                 .ok());
    auto refs = data_.Download<PageRef>(refs_);
    refs.resize(static_cast<size_t>(data_.Download<int32_t>(num_pages_)[0]));
    return refs;
  }

  std::vector<std::byte> PageBytes(const PageRef& ref) {
    return data_.Download<std::byte>(DeviceSpan<const std::byte>(ref.page, kPageBytes));
  }

 private:
  static constexpr KvGeometry kGeometry{1, 1, 128, kBf16Kv};

  MetaPoolView pool() const { return {pool_bytes_.bytes(), kGeometry}; }
  void Copy(std::span<const std::byte> host, std::byte* device) {
    RI_CHECK(backend_.device->Upload(*backend_.stream, host, {device, host.size()}).ok());
    RI_CHECK(backend_.stream->Synchronize().ok());
  }

  Backend& backend_;
  DeviceData data_;
  const int64_t max_retrieved_;
  const int64_t max_pages_;
  DeviceBuffer pool_bytes_;
  DeviceBuffer refs_;
  DeviceBuffer num_pages_;
  DeviceBuffer retrieved_;
  DeviceBuffer num_retrieved_;
  DeviceBuffer blocks_;
  DeviceBuffer index_;
};

}  // namespace retroinfer::test_support
