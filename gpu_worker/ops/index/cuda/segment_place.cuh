// Where the parts of one layer lie in a segment's image and in the meta blocks.
#pragma once

#include <cstdint>

#include "common/kv/segment_layout.h"
#include "gpu_worker/ops/cuda/element.cuh"
#include "gpu_worker/ops/meta_pool.h"

namespace retroinfer::cuda {

// Offsets into an extent, bytes, of the first head of one layer that memory of this geometry has;
// heads follow each other. `of_arena`: the arena's heads that it has.
struct LayerOffsets {
  LayerOffsets(const KvGeometry& geometry, const KvHeadRange& of_arena, uint32_t num_tokens,
               uint32_t layer) {
    const KvHeadRange heads = of_arena.Of(geometry);
    const SegmentLayout layout(heads.ArenaOf(geometry), num_tokens);
    const int64_t first_run = int64_t{layer} * heads.total + heads.first;
    centroids_bytes = static_cast<int64_t>(layout.centroids_bytes);
    value_sums_bytes = static_cast<int64_t>(layout.value_sums_bytes);
    clusters = static_cast<int64_t>(layout.clusters_offset) +
               first_run * layout.num_clusters * static_cast<int64_t>(sizeof(ClusterEntry));
    centroids = static_cast<int64_t>(layout.centroids_offset) + first_run * centroids_bytes;
    value_sums = static_cast<int64_t>(layout.value_sums_offset) + first_run * value_sums_bytes;
    order = static_cast<int64_t>(layout.order_offset) +
            first_run * num_tokens * static_cast<int64_t>(sizeof(TokenOrder));
    codes_bytes = static_cast<int64_t>(layout.codes_bytes);
    codes = static_cast<int64_t>(layout.codes_offset) + first_run * codes_bytes;
  }

  int64_t clusters;
  int64_t centroids;
  int64_t value_sums;
  int64_t order;
  int64_t codes;
  int64_t centroids_bytes;   // of one head
  int64_t value_sums_bytes;  // of one head
  int64_t codes_bytes;       // of one head; 0: there are none
};

// One layer of the pool of meta blocks.
struct MetaLayer {
  MetaLayer(const MetaPoolView& pool, uint32_t layer, DeviceSpan<const MetaBlockId> meta_blocks)
      : data(pool.Centroids(0, layer, 0)),
        block_bytes(static_cast<int64_t>(MetaPoolView::BlockBytes(pool.geometry))),
        run_bytes(static_cast<int64_t>(pool.run_bytes)),
        centroids_bytes(static_cast<int64_t>(MetaPoolView::CentroidsBytes(pool.geometry))),
        value_sums_bytes(static_cast<int64_t>(MetaPoolView::ValueSumsBytes(pool.geometry))),
        first_codes_offset(static_cast<int64_t>(pool.first_codes_offset)),
        codes_offset(static_cast<int64_t>(pool.codes_offset)),
        codes_bytes(static_cast<int64_t>(
            TokenCodeLayout(pool.geometry.format, pool.geometry.head_dim).bytes)),
        ids(meta_blocks.device_data()) {}

  // What belongs to 64 clusters of a head: centroids, value sums, entries.
  __device__ std::byte* Run(int32_t head, int32_t block) const {
    return data + static_cast<int64_t>(ids[block]) * block_bytes + head * run_bytes;
  }
  __device__ MetaEntry* Entry(int32_t head, int32_t cluster) const {
    constexpr auto kPerBlock = static_cast<int32_t>(kClustersPerMetaBlock);
    return reinterpret_cast<MetaEntry*>(Run(head, cluster / kPerBlock) + centroids_bytes +
                                        value_sums_bytes) +
           cluster % kPerBlock;
  }
  // Address in the pool of byte `at` of the layer's centroids (`which` 0) or value sums (1), as
  // they follow each other in the segment: [heads][m][d]. `head_bytes`: of one head's vectors.
  __device__ std::byte* Vector(int64_t at, int64_t head_bytes, int which) const {
    const int64_t in_head = at % head_bytes;
    const int64_t of_block = which == 0 ? centroids_bytes : value_sums_bytes;
    return Run(static_cast<int32_t>(at / head_bytes), static_cast<int32_t>(in_head / of_block)) +
           which * centroids_bytes + in_head % of_block;
  }

  // Where tokens have codes.
  __device__ int32_t* FirstCode(int32_t head, int32_t cluster) const {
    constexpr auto kPerBlock = static_cast<int32_t>(kClustersPerMetaBlock);
    return reinterpret_cast<int32_t*>(Run(head, cluster / kPerBlock) + first_codes_offset) +
           cluster % kPerBlock;
  }
  __device__ std::byte* Codes(int32_t head, int32_t block) const {
    return Run(head, block) + codes_offset;
  }

  std::byte* data;  // of the layer's first head in block 0
  int64_t block_bytes;
  int64_t run_bytes;         // of a head
  int64_t centroids_bytes;   // of 64
  int64_t value_sums_bytes;  // of 64
  int64_t first_codes_offset;
  int64_t codes_offset;
  int64_t codes_bytes;  // of 1024 tokens
  const MetaBlockId* ids;
};

}  // namespace retroinfer::cuda
