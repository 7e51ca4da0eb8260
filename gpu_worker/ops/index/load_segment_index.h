// Fills meta blocks from one layer of a segment's image in the arena: what WriteSegment left in
// them when the segment was built. Bound by the copy: centroids, value sums, entries and codes of
// tokens, once.
//
// Where the pool has some of the arena's KV heads, only their parts are read. An entry whose pages
// do not lie in the extent, or whose codes would not lie in the segment's, becomes an empty
// cluster: bytes that another process can reach are never an address.
#pragma once

#include <cstdint>

#include "common/kv/segment_layout.h"
#include "gpu_worker/ops/meta_pool.h"

namespace retroinfer {

struct LoadSegmentIndexArgs {
  DeviceSpan<const std::byte> extent;  // pages of the arena, from the segment's header on
  PageId extent_first_page = 0;        // global page id of the extent's start, for MetaEntry
  uint32_t num_tokens = 0;
  uint32_t layer = 0;
  MetaPoolView pool;
  KvHeadRange heads;                          // of the arena's, that the pool has
  DeviceSpan<const MetaBlockId> meta_blocks;  // [num_tokens / 1024]
};

}  // namespace retroinfer
