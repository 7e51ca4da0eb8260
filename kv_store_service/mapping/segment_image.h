// Reads and checks the bytes of a segment or a block that a worker has written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "common/kv/kv_geometry.h"
#include "common/kv/segment_layout.h"

namespace retroinfer::kvstore {

// What the store notes of an image that it has checked.
struct SegmentImage {
  uint32_t used_pages = 0;
};

// Returns how many pages the largest image of so many tokens has, of a segment or of a block
// (IsBlock()): an extent is reserved with so many.
uint32_t MaxImagePages(const KvGeometry& geometry, uint32_t num_tokens);

// Checks the header and the index of `extent` (the bytes of one extent, which the worker can change
// at any time: each value is copied before it is checked).
//
// Returns: INVALID_ARGUMENT, naming the field and both values, unless the header is that of a
//          segment with this geometry, token count and begin; used_pages fits into the extent; the
//          clusters of each (layer, head) have `token_count` tokens in sum; each cluster's pages
//          lie between the index and used_pages and in no other cluster; and each (layer, head)'s
//          row of the order table is a permutation of the tokens. Of a block (IsBlock()): unless
//          the header is that of a block with this geometry, token count and begin, and the extent
//          has its pages.
// Cost:    O(tokens * layers * heads + pages); of a block O(1). Memory: that of one head's index.
absl::StatusOr<SegmentImage> ReadSegmentImage(std::span<const std::byte> extent,
                                              const KvGeometry& geometry, uint64_t token_begin,
                                              uint32_t token_count);

}  // namespace retroinfer::kvstore
