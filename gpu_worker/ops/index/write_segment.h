// Writes one layer of a clustered segment: pages, index and order of tokens into its extent of the
// arena, and the meta blocks of the device (layouts in segment_layout.h and meta_pool.h). Clusters
// of a head take consecutive pages in cluster order; heads and layers follow each other from
// `next_page` on, which is advanced past the layer's last page, so that the extent has no holes.
// Where the format has codes of tokens (token_code.h), they are made of the keys and the stored
// centroids. Where `fill` has slots, the same pages go there as well, counted from the segment's
// first page of KV. Where the memory has some of the arena's KV heads, only their parts of the
// extent are written, and pages lie in their region. Bound by the copy: reads each KV byte of the
// layer once, writes it once or twice.
#pragma once

#include <cstdint>

#include "common/kv/segment_layout.h"
#include "gpu_worker/ops/block_cache/slot_fill.h"
#include "gpu_worker/ops/index/cluster_keys.h"
#include "gpu_worker/ops/meta_pool.h"

namespace retroinfer {

struct WriteSegmentArgs {
  LayerKv kv;
  int64_t first_token = 0;
  int32_t num_tokens = 0;
  int32_t num_clusters = 0;
  DeviceSpan<const int32_t> assignment;  // as in ClusterKeysArgs
  DeviceSpan<const int32_t> sizes;
  DeviceSpan<const float> centroids;
  DeviceSpan<const float> value_sums;
  DeviceSpan<const float> radii;
  uint32_t layer = 0;
  KvGeometry geometry;
  KvHeadRange heads;  // of the arena's, that `geometry` has
  // Destinations.
  DeviceSpan<std::byte> extent;   // [extent_pages] pages of the arena, mapped
  PageId extent_first_page = 0;   // global page id of extent's start, for MetaEntry
  uint32_t* next_page = nullptr;  // device; page in the extent where the layer begins; advanced
  bool zero_rest = false;         // of the heads' region, behind the layer: for the last one
  MetaPoolView pool;
  DeviceSpan<const MetaBlockId> meta_blocks;  // [num_clusters / 64]
  SlotFill fill;
  DeviceSpan<std::byte> scratch;  // at least 8 * kv_heads * (num_tokens + num_clusters)
};

}  // namespace retroinfer
