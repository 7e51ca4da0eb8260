// A run of pages of the arena. The worker may write it until its segment is committed; a cached one
// holds a committed segment already, which other sequences may use as well.
#pragma once

#include <cstdint>
#include <optional>

#include "common/hash/segment_name.h"
#include "common/kv/kv_geometry.h"

namespace retroinfer {

struct Extent {
  uint64_t id = 0;
  PageId first_page = 0;    // in the arena
  uint32_t num_pages = 0;   // pages
  uint32_t num_tokens = 0;  // that it was reserved for
  bool cached = false;      // holds the image of the wanted segment; must not be written
  // Of a cached one with generated KV, its name (common/hash/segment_name.h).
  std::optional<common::SegmentName> generated = std::nullopt;
};

}  // namespace retroinfer
