// Reading images between the two halves of a commit or a declaration, without the store's lock.
#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "absl/status/statusor.h"
#include "common/kv/kv_geometry.h"
#include "kv_store_service/arena/arena.h"
#include "kv_store_service/mapping/segment_image.h"

namespace retroinfer::kvstore {

// An image that lies in an extent.
struct ImageToRead {
  uint64_t extent_id = 0;
  PageRun pages;
  uint64_t token_begin = 0;
  uint32_t token_count = 0;  // of a segment or block: CheckTokens()
};

// By extent id: what was read, or why it is no segment.
using ReadImages = std::map<uint64_t, absl::StatusOr<SegmentImage>>;

// Reads and checks the images as ReadSegmentImage(). Touches the arena: not under a lock.
//
// REQUIRES: the pages are inside the arena.
ReadImages ReadImagesOf(const Arena& arena, const KvGeometry& geometry,
                        std::span<const ImageToRead> images);

}  // namespace retroinfer::kvstore
