// Reads and checks the bytes of a segment that a worker has written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv/kv_geometry.h"
#include "common/kv/segment_layout.h"

namespace retroinfer::kvstore {

// What the store keeps of a segment's image: a private copy, checked.
struct SegmentImage {
  uint32_t used_pages = 0;
  std::vector<ClusterEntry> clusters;  // [layers][kv_heads][clusters]
};

// Copies the header and cluster entries out of `extent` (the bytes of one extent, which the worker
// can change at any time) and checks the copy.
//
// Returns: INVALID_ARGUMENT, naming the field and both values, unless the header is that of a
//          segment with this geometry, token count and begin; used_pages fits into the extent; the
//          clusters of each (layer, head) have `token_count` tokens in sum; each cluster's pages
//          lie between the index and used_pages and in no other cluster; and each (layer, head)'s
//          row of the order table is a permutation of the tokens.
// Cost:    O(tokens * layers * heads + pages).
absl::StatusOr<SegmentImage> ReadSegmentImage(std::span<const std::byte> extent,
                                              const KvGeometry& geometry, uint64_t token_begin,
                                              uint32_t token_count);

}  // namespace retroinfer::kvstore
