// Layout of the pool of meta blocks: the device side of the wave index.
//
// A *meta block* holds 64 clusters for every layer and KV head. For each (layer, head), contiguous:
//   centroids  [64][d]  KV dtype, mean of the members' keys
//   value sums [64][d]  KV dtype
//   entries    [64]     MetaEntry
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kv/kv_geometry.h"
#include "gpu_worker/device/device_span.h"
#include "gpu_worker/ops/dense_pool.h"

namespace retroinfer {

// Where a cluster's tokens lie in the arena, and how far they spread.
struct MetaEntry {
  PageId first_page;    // global page id; the cluster's pages are consecutive
  uint32_t num_tokens;  // 0: empty, masked everywhere
  float radius;         // largest distance of a member key to the centroid
};

struct MetaPoolView {
  DeviceSpan<std::byte> bytes;
  KvGeometry geometry;

  static constexpr size_t RunBytes(const KvGeometry& geometry) {
    return kClustersPerMetaBlock * (2 * geometry.vector_bytes() + sizeof(MetaEntry));
  }
  static constexpr size_t BlockBytes(const KvGeometry& geometry) {
    return size_t{geometry.num_layers} * geometry.num_kv_heads * RunBytes(geometry);
  }
  uint32_t num_blocks() const { return static_cast<uint32_t>(bytes.size() / BlockBytes(geometry)); }
  std::byte* Centroids(MetaBlockId block, uint32_t layer, uint32_t head) const {
    const size_t run =
        (static_cast<size_t>(block) * geometry.num_layers + layer) * geometry.num_kv_heads + head;
    return bytes.device_data() + run * RunBytes(geometry);
  }
  std::byte* ValueSums(MetaBlockId block, uint32_t layer, uint32_t head) const {
    return Centroids(block, layer, head) + kClustersPerMetaBlock * geometry.vector_bytes();
  }
  MetaEntry* Entries(MetaBlockId block, uint32_t layer, uint32_t head) const {
    return reinterpret_cast<MetaEntry*>(Centroids(block, layer, head) +
                                        2 * kClustersPerMetaBlock * geometry.vector_bytes());
  }
};

// The index of one sequence of a batch.
struct MetaIndexView {
  const MetaBlockId* block_ids;  // device, [num_blocks]
  int32_t num_blocks;            // 64 clusters each, empty ones included
};

}  // namespace retroinfer
